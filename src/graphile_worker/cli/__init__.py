"""The command `graphile-worker`."""
