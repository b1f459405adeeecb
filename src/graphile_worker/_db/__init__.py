"""Connections: of this package and of the caller, retries, notifications."""
