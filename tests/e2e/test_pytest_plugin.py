"""The pytest plugin in separate projects that have only the built wheel."""

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
    """Return an interpreter that has the built wheel."""
    folder = made_once(tmp_path_factory, "installed", environment_with_wheel)
    return folder / "env/bin/python"


def run_project(
    project: str, installed: Path, folder: Path, database: TestDatabase, *command: str
) -> str:
    """Run the tests of a project, which must pass, and return their output."""
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


def count_tests(project: str) -> int:
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
def test_the_plugin_works_in_a_separate_project(
    project: str, plugins: list[str], installed: Path, tmp_path: Path, database: TestDatabase
):
    others = {"asyncio", "django", "timeout", "xdist", "cacheprovider"} - {*plugins}
    off = [part for name in sorted(others) for part in ("-p", f"no:{name}")]
    command = ["pytest", "-q", *off]

    output = run_project(project, installed, tmp_path, database, *command)

    passed = re.search(r"(\d+) passed", output)
    assert passed is not None
    assert int(passed[1]) >= count_tests(project)


def test_the_harness_works_under_the_django_test_runner(
    installed: Path, tmp_path: Path, empty_database
):
    output = run_project(
        "django",
        installed,
        tmp_path,
        empty_database,
        "django",
        "test",
        "--pattern",
        "test_unittest*",
    )

    assert "Ran 4 tests" in output
