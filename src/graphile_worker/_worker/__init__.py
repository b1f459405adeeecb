"""Running jobs: take one, run its task, record how it ended."""
