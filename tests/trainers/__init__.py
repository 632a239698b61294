"""The real trainers with our loader: what they take is DataLoader's, or what our own formulas say."""
