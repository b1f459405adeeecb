"""Claim jobs, run their tasks, and write their outcomes."""
