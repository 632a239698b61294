"""The sockets that the daemon listens on, and who is connected."""
