"""The package takes the fingerprint: a digest of everything that decides a stream's bytes."""
