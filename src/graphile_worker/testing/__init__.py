"""Helpers for the tests of programs that add and run jobs; pytest gets them as the fixture `gw`."""

from graphile_worker.testing.harness import Harness
from graphile_worker.testing.runner import DrainResult

__all__ = ["DrainResult", "Harness"]
