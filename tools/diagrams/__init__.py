"""The diagrams of docs/concepts: `python -m tools.diagrams` draws them anew into docs/images."""
