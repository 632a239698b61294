"""What trainers that rebuild loaders need, one module each; each imports its trainer's package."""
