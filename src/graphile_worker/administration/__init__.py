"""Administration: what a person sees of a queue, and does to it."""
