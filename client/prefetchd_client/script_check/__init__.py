"""The package is `prefetchd doctor --script`: it runs the loaders of somebody's script both ways."""
