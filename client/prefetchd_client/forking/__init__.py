"""The package forks the trainer: the fork makes a loader's batches first."""
