"""The program of a loader on its way to other processes: pickled, or what of it travels beside the pickle."""
