"""Reads what the daemon publishes, without asking the daemon: the status segment, and what follows from it."""
