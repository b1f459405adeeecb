"""Fixtures of the unit tests."""

import os
from pathlib import Path

import pytest

from tests.support.processes import CLEARED_VARIABLES


@pytest.fixture
def empty_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Change to an empty folder, without environment variables of the worker; return the folder."""
    for name in filter(CLEARED_VARIABLES.match, list(os.environ)):
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path
