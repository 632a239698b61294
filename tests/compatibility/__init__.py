"""The same loop with torch's DataLoader and with PrefetchLoader: what comes out must be equal."""
