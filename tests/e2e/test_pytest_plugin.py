"""The plugin in projects of their own, which have the built wheel and nothing of the repository."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import TestDatabase
from tests.support.shared_folder import made_once
from tests.support.wheel import environment_with_wheel

PROJECTS = Path(__file__).parent / "projects"

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has the built wheel."""
    folder = made_once(tmp_path_factory, "installed", environment_with_wheel)
    return folder / "env/bin/python"


def ran(project: str, installed: Path, folder: Path, database: TestDatabase, *command: str) -> str:
    """What the tests of a project say, which must all pass."""
    home = folder / project
    shutil.copytree(PROJECTS / project, home, ignore=shutil.ignore_patterns("__pycache__"))
    for file in home.rglob("*checks.py"):
        file.rename(file.with_name(f"test_{file.name}"))
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST", "PYTHONPATH", "PG", "GRAPHILE"))
    }
    done = subprocess.run(
        [str(installed), "-m", *command],
        cwd=next(home.rglob("test_*.py")).parent,
        env=environment | {"DATABASE_URL": database.url, "DJANGO_SETTINGS_MODULE": "settings"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def count_of(project: str) -> int:
    found = [path.read_text() for path in (PROJECTS / project).rglob("*checks.py")]
    return sum(len(re.findall(r"^\s*(?:async )?def test_", text, re.MULTILINE)) for text in found)


@pytest.mark.feature("F130", "F305")
@pytest.mark.parametrize(
    ("project", "plugins"),
    [
        ("plain", []),
        ("asynchronous", ["asyncio"]),
        ("sqlalchemy", ["asyncio"]),
        ("django", ["django"]),
        ("idle", []),
    ],
)
def test_every_helper_works_in_a_project_of_its_own(
    project: str, plugins: list[str], installed: Path, tmp_path: Path, database: TestDatabase
):
    others = {"asyncio", "django", "timeout", "xdist", "cacheprovider"} - {*plugins}
    off = [word for name in sorted(others) for word in ("-p", f"no:{name}")]
    command = ["pytest", "-q", *off]

    said = ran(project, installed, tmp_path, database, *command)

    passed = re.search(r"(\d+) passed", said)
    assert passed is not None
    assert int(passed[1]) >= count_of(project)


def test_djangos_own_runner_needs_no_pytest(installed: Path, tmp_path: Path, empty_database):
    said = ran(
        "django",
        installed,
        tmp_path,
        empty_database,
        "django",
        "test",
        "--pattern",
        "test_unittest*",
    )

    assert "Ran 2 tests" in said
