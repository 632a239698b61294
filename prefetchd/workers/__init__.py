"""What runs beside the daemon: zygotes that load the user's code, workers that fill slots, and how to start them."""
