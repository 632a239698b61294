"""Provides labelled places where a process may be made to kill itself, so that tests can kill anything anywhere."""
