"""The way to a daemon: found, started, lost and found again."""
