"""The long-running process: a pure engine that decides and one loop that waits."""
