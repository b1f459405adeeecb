"""Migrations of the queue: one for each release that changes its schema."""
