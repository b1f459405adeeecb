"""Faults on purpose: what a worker does while its database misbehaves."""
