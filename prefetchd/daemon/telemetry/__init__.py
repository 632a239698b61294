"""What the daemon tells of itself: snapshots, metrics, traces, logs."""
