"""This package compares prefetchd with other loaders: one command, each contestant in a venv of its own, in turn.

`python -m benchmarks.peers setup` makes the venvs, `python -m benchmarks.peers` measures, `python -m benchmarks.peers
report` writes the tables of docs/peers.md. contestants/ has a file for each loader, works/ one for each thing that is
asked of them.
"""
