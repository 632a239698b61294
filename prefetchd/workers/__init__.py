"""Runs beside the daemon: zygotes that load the user's code, and workers that fill slots."""
