"""The diagrams of the documentation: `python -m tools.diagrams` draws them into docs/images."""
