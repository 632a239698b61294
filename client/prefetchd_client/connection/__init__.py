"""The package reaches a daemon: it connects to one, starts one, and comes back after one has died."""
