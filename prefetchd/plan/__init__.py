"""Plans purely: (epoch, step) -> indices, ordinals, seeds. O(1) in the dataset's size; no I/O, no state."""
