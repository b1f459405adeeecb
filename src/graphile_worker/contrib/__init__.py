"""Integrations with other packages, one module each. No other module imports them."""
