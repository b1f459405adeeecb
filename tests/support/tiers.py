"""The two tiers of tests: the gate, which every change passes, and the nightly tier.

A rule has one test. Where its full size takes minutes, the test asks for its size here: the gate
runs it at a size that shows the rule, the nightly tier at the full one.
"""

import os
import random
import sys
from typing import TypeVar

import pytest

T = TypeVar("T")

# Marks of tests that only the nightly tier runs.
NIGHTLY_MARKS = ("nightly", "slow_io", "serial")

_nightly = False
_sized_modules: set[str] = set()


def select(config: pytest.Config) -> None:
    """Choose the tier of this run; must come before test modules are imported."""
    global _nightly
    _nightly = config.getoption("--tier") == "nightly"


def is_nightly() -> bool:
    return _nightly


def is_later(item: pytest.Item) -> bool:
    """Does this test wait for the nightly tier?"""
    return any(item.get_closest_marker(name) for name in NIGHTLY_MARKS)


def size(gate: T, nightly: T) -> T:
    """Choose a count, a list of seeds or another size by the tier of this run."""
    _sized_modules.add(sys._getframe(1).f_globals["__name__"])
    return nightly if _nightly else gate


def is_larger(item: pytest.Item) -> bool:
    """Does the nightly tier run more of this test's module than the gate?"""
    module = item.getparent(pytest.Module)
    return module is not None and module.obj.__name__ in _sized_modules


def random_seed() -> int:
    """Draw a seed for the nightly tier; the gate never depends on chance.

    All processes of one run draw the same, because a seed may be part of a test's name. With
    `GW_RANDOM_SEED`, so does a run that repeats its tests.
    """
    given = os.environ.get("GW_RANDOM_SEED") or os.environ.get("PYTEST_XDIST_TESTRUNUID")
    run = given or random.SystemRandom().random()
    return random.Random(run).randrange(10**6)
