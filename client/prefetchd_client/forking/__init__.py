"""The fork of the trainer that makes a loader's batches first."""
