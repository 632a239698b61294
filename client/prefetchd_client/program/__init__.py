"""The package takes a loader's program to other processes: it is pickled, and some of it travels beside the pickle."""
