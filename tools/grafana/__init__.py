"""Grafana dashboards of deploy/grafana, written as rows of panels.

`python -m tools.grafana` writes the JSON files. Grafana's JSON repeats some 40 lines per panel, and
the condition that selects a schema in every query, so it is generated.
"""
