"""Holds what daemon, workers and clients agree on: formats, messages, names and errors. No behaviour beyond that."""
