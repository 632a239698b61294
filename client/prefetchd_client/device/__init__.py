"""The package brings batches from the ring to a device: pinned memory, copies ahead of the trainer, transforms on the
device."""
