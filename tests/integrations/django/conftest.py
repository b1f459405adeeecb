"""A Django project for each test: its commands, its own tests and its workers run as programs."""

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TestDatabase
from tests.support.processes import Program, Programs

PROJECT = Path(__file__).parent / "project"

# No program of the project may find the database in another way than by its settings.
NO_DATABASE = dict.fromkeys(("DATABASE_URL", "PGDATABASE", "GRAPHILE_WORKER_SCHEMA"))


# What programs of the project import before they read its settings.
PRELOADED = (
    "django.core.management",
    "django.db.backends.postgresql.base",
    "django.test",
    "pytest",
)


class Project:
    """A copy of the project, on a database that is empty at first."""

    def __init__(self, folder: Path, programs: Programs, database: TestDatabase) -> None:
        self.folder = folder
        self.database = database
        self.programs = programs
        self.settings: dict[str, Any] = {
            "DATABASES": {"default": self.describe_database(database.name)},
            "GRAPHILE_WORKER": {"SCHEMA": database.schema},
        }

    def describe_database(self, name: str, **more: Any) -> dict[str, Any]:
        """Return an entry of DATABASES."""
        port = self.database.cluster.port
        return {"NAME": name, "USER": "postgres", "HOST": "127.0.0.1", "PORT": port, **more}

    def manage(self, *arguments: str, **variables: str | None) -> Program:
        """Run a command of manage.py to its end, which must succeed."""
        program = self.start(*arguments, **variables)
        program.end(within=300)
        assert program.code == 0, program.out + program.err
        return program

    def start(self, *arguments: str, **variables: str | None) -> Program:
        """Start a command of manage.py."""
        command = [sys.executable, "manage.py", *arguments]
        return self.programs.start(command, self._environment(variables))

    def check(self, name: str, *arguments: str, **variables: str | None) -> Program:
        """Run the tests in checks/NAME.py with pytest-django, which must pass."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += [f"checks/{name}.py", *arguments]
        program = self.programs.start(command, self._environment(variables))
        program.end(within=300)
        assert program.code == 0, program.out + program.err
        return program

    def _environment(self, variables: Mapping[str, str | None]) -> dict[str, str | None]:
        return {
            **NO_DATABASE,
            "ACME": json.dumps(self.settings),
            "DJANGO_SETTINGS_MODULE": "acme.settings",
            **variables,
        }


@pytest.fixture
def project(tmp_path: Path, empty_database: TestDatabase) -> Iterator[Project]:
    folder = tmp_path / "project"
    shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\nasyncio_mode = auto\n")
    with Programs(folder) as programs:
        yield Project(folder, programs.preloading(*PRELOADED), empty_database)
