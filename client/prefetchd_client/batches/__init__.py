"""The package turns a slot of shared memory, or a file, into a batch: attachments to rings, tensors over slots,
leases."""
