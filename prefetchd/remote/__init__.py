"""Makes a stream's batches on other machines, with Ray: the bridge beside the daemon, and what runs on a node."""
