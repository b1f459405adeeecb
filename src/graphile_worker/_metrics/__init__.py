"""Metrics: their definitions, the cells that count, and the text that Prometheus reads."""
