"""The shared memory that the daemon owns: rings, programs, the status segment, and those of its predecessors."""
