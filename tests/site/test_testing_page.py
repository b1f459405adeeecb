"""The files of the testing guide are written as a reader would, and pytest runs them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TestDatabase
from tests.support.pages import ROOT
from tools.site import COMMENT

BLOCK = re.compile(r"^```(python|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Write the files of the page, up to its section about connections."""
    page = (ROOT / "docs/guides/testing-tasks.md").read_text(encoding="utf-8")
    shown, _, _ = COMMENT.sub("", page).partition("## Test connections")
    blocks = [match.groups() for match in BLOCK.finditer(shown)]
    (settings,) = (text for kind, text in blocks if kind == "toml")
    tasks, *tests = (text for kind, text in blocks if kind == "python")
    (tmp_path / "pyproject.toml").write_text(settings)
    (tmp_path / "shop.py").write_text(tasks)
    (tmp_path / "test_shop.py").write_text("\n\n".join(tests))
    return tmp_path


@pytest.mark.single_version
@pytest.mark.feature("F130", "F305")
def test_the_tests_of_the_testing_guide_pass(project: Path, database: TestDatabase):
    excluded = re.compile(r"^(PYTEST|PG|GRAPHILE)")
    environment = {name: value for name, value in os.environ.items() if not excluded.match(name)}

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:django"],
        cwd=project,
        env={**environment, "DATABASE_URL": database.url},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^10 passed", done.stdout, re.MULTILINE), done.stdout
