"""`prefetchd doctor --script`: somebody's script, whose loaders are run both ways."""
