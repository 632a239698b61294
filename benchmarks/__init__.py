"""One question a file, one command each: python -m benchmarks.NAME. Every figure is a ratio, taken side by side."""
