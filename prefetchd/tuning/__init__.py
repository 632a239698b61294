"""Decides how many workers a stream has that were not told: as few as keep its trainers from waiting, at most what
helps. Pure."""
