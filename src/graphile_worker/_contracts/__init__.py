"""Contracts: the payloads of tasks as JSON Schema and TypeScript, and what changed in them."""
