"""The package serves trainers that rebuild loaders, one module each; each imports its trainer's package.
Decision 0050 says which hooks they use."""
