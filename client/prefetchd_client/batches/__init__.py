"""From shared memory, or a file, to the batch: attachments to rings, tensors over slots, leases."""
