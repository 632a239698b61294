"""Holds the fixed set of places for batches: who may use which slot (policy, cursors), and the memory behind it
(segment)."""
