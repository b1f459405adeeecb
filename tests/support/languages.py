"""Workers of three languages with the same options and tasks, for tests that share a queue.

The programs are fleet.py, fleet.js and worker.rs in tests/interop. Each runs as `<install|add|run|
once> <options as JSON>`: it installs the schema, adds jobs, runs a worker, or runs what is ready.
"""

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TestDatabase
from tests.support.cluster import Cluster
from tests.support.database_pool import DatabasePool
from tests.support.processes import Program, Programs, eventually
from tests.support.sql import Sql
from tests.support.tools import MODULES, NODE, find_missing_rust, rust_program

FOLDER = Path(__file__).parents[1] / "interop" / "programs"

# Where tasks write what they ran. They find it by the search path.
RAN = """
create table ran (
  n bigint generated always as identity, job bigint, attempt int, language text, payload json,
  at timestamptz default clock_timestamp()
)
"""


@dataclass(frozen=True)
class Language:
    """An implementation with its release, and the program that runs it."""

    name: str
    program: tuple[str, ...]

    def command(self, database: TestDatabase, what: str, /, **options: Any) -> list[str]:
        """The command for a database. The option `language` is another name for its rows."""
        given = {"url": database.url, "schema": database.schema, "language": self.name, **options}
        return [*self.program, what, json.dumps(given)]

    @property
    def is_rust(self) -> bool:
        return self.name.startswith("rust")


PYTHON = Language("python", (sys.executable, str(FOLDER / "fleet.py")))
NODE_18 = Language("node", (str(NODE), str(FOLDER / "fleet.js"), str(MODULES / "gw018")))
RUST_13 = Language("rust 0.13", (str(rust_program("worker-0-13")),))
RUST_14 = Language("rust 0.14", (str(rust_program("worker-0-14")),))

needs_rust = pytest.mark.skipif(find_missing_rust() is not None, reason=str(find_missing_rust()))

LANGUAGES = (PYTHON, NODE_18, RUST_13, RUST_14)


class Workers:
    """Starts programs of any language on a database."""

    def __init__(self, programs: Programs, database: TestDatabase, **variables: str) -> None:
        self._programs = programs
        self._database = database
        self._variables = {"NO_LOG_SUCCESS": "1", **variables}

    def start(self, language: Language, /, **options: Any) -> Program:
        """Start a worker, and wait until it looks for jobs."""
        return self.wait_until_ready(self.launch(language, **options))

    def launch(self, language: Language, /, **options: Any) -> Program:
        """Start a worker without waiting for it."""
        return self._start(language, "run", **options)

    def wait_until_ready(self, worker: Program) -> Program:
        eventually(lambda: _is_ready(worker), "the worker is ready")
        return worker

    def install(self, language: Language) -> None:
        self._run_to_end(language, "install")

    def add(self, language: Language, jobs: Sequence[dict[str, Any]]) -> None:
        """Add jobs one after the other with the client of a language."""
        self._run_to_end(language, "add", jobs=jobs)

    def start_adding(self, language: Language, jobs: Sequence[dict[str, Any]]) -> Program:
        """Start to add jobs, while other programs do so too."""
        return self._start(language, "add", jobs=jobs)

    def run_once(self, language: Language, /, **options: Any) -> None:
        """Run what is ready."""
        self._run_to_end(language, "once", **options)

    def _run_to_end(self, language: Language, what: str, /, **options: Any) -> None:
        program = self._start(language, what, **options)
        code = program.end()
        assert code == 0, f"{language.name} {what}: {program.out}{program.err}"

    def _start(self, language: Language, what: str, /, **options: Any) -> Program:
        command = language.command(self._database, what, **options)
        return self._programs.start(command, self._variables)


class Copies:
    """Copies of databases that two languages have installed, one after the other."""

    def __init__(
        self, databases: DatabasePool, cluster: Cluster, schema: str, folder: Path
    ) -> None:
        self._databases = databases
        self._cluster = cluster
        self._schema = schema
        self._folder = folder
        self._templates: dict[tuple[Language, ...], str] = {}
        self._copies: list[str] = []

    def copy(self, *installers: Language) -> TestDatabase:
        """A new database that these languages installed."""
        if installers not in self._templates:
            self._templates[installers] = self._install(installers)
        name = self._databases.clone(self._templates[installers])
        self._copies.append(name)
        return TestDatabase(name, self._cluster, self._schema)

    def drop_copies(self) -> None:
        for name in self._copies:
            self._cluster.drop_database(name)
        self._copies.clear()

    def close(self) -> None:
        self.drop_copies()
        for name in self._templates.values():
            self._cluster.drop_database(name)

    def _install(self, installers: tuple[Language, ...]) -> str:
        name = self._databases.clone("template0")
        database = TestDatabase(name, self._cluster, self._schema)
        with Programs(self._folder) as programs:
            for language in installers:
                Workers(programs, database).install(language)
        with closing(Sql(database.dsn, self._schema)) as sql:
            sql.run(RAN)
        return name


def _is_ready(worker: Program) -> bool:
    assert worker.is_running, worker.err
    return "ready\n" in worker.out
