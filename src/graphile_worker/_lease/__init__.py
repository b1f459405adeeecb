"""What a pool does beside its jobs, for the good of all pools."""
