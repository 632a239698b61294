"""The package finds what the user has changed between two epochs, without digesting everything each time."""
