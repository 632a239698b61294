"""Says what a snapshot means: whether the daemon is well, and of each stream what limits it and for how long what is
ready lasts. Pure: the command and the metrics say the same."""
