"""Streams that the configuration declares."""
