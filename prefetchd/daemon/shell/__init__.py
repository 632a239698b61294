"""The shell between the pure engine and the world: events in, commands out."""
