"""The reference systems as examples: every batch of each is DataLoader's."""
