"""Holds what daemon, workers and clients agree on: formats, messages, names and errors. No behaviour beyond that, but
what both sides must do alike: paths, locks and mappings (decision 0012)."""
