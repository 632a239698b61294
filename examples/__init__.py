"""Programs as people have them, with the loader swapped; `--loader torch` runs them with DataLoader."""
