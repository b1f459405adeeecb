"""Every python, sql and console block of README and docs runs, page by page, in order."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from graphile_worker import sync
from tests.conftest import TestDatabase
from tests.docs.pages import ROOT, pages, wants_schema
from tests.support.tools import client_program


@pytest.mark.timeout(120)
@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run(page: Path, empty_database: TestDatabase, tmp_path: Path):
    if wants_schema(page):
        with sync.Client(empty_database.dsn) as client:
            client.migrate()

    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.docs.run_page", str(page)],
        env=_environment(empty_database),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr


def _environment(database: TestDatabase) -> dict[str, str]:
    programs = [Path(sys.executable).parent, client_program("psql").parent]
    return {
        **os.environ,
        "PATH": os.pathsep.join([*map(str, programs), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
        "DATABASE_URL": database.url,
    }
