"""Integrations with other packages, one module each; nothing here is imported by the rest."""
