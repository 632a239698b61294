"""What is true of times, on real daemons: `make test-slow` runs these with nothing beside them."""
