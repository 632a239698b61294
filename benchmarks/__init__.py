"""The package answers one question a file, by one command each: python -m benchmarks.NAME. Every figure is a ratio,
taken side by side."""
