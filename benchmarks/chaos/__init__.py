"""Does every batch come, once and whole, whoever is killed? python -m benchmarks.chaos, explained in
docs/reliability.md."""
