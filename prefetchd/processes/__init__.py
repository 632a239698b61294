"""Holds what daemon and workers share about processes: how one begins, where its status lies, whom it forks."""
