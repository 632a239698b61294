"""What is true of times, on real daemons: `make test` runs these with nothing beside them."""
