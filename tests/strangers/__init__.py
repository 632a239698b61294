"""Programs as strangers write them, with their real packages: once with DataLoader, once with PrefetchLoader."""
