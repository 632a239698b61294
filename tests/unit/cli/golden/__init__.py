"""Screens of `prefetchd status` as they must be; `python -m tests.unit.cli.golden.regenerate` writes them anew."""
