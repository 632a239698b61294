"""Shows what the daemon publishes as a page: live from a process of its own, or frozen in one file."""
