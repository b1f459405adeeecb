"""Helpers without knowledge of jobs: time, text, processes, logs."""
