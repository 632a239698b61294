"""What the user has changed between two epochs, found without digesting everything each time."""
