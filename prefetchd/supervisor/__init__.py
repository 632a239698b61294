"""Starts, watches and ends processes for the daemon. Imports no torch."""
