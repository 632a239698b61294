"""The daemon as a process: its loop, and its service manager."""
