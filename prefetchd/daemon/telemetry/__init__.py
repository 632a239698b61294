"""The daemon's reports on itself: snapshots, metrics, traces, logs."""
