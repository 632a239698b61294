"""R1 is the RAM-disk buffer: a second script beside the trainer, a text file of two lines, batches on a RAM disk."""
