"""What several files of unit tests share."""

import os
from pathlib import Path

import pytest

from tests.support.processes import CLEARED_VARIABLES


@pytest.fixture
def nothing_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder to be in, and no variable of ours; the folder."""
    for name in filter(CLEARED_VARIABLES.match, list(os.environ)):
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path
