"""The settings of a worker: their names, kinds and values, as flags, variables and keys."""
