"""A copy of an example in a folder; its README has the commands to type."""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import TestDatabase
from tests.support.pages import split_plain_command
from tests.support.processes import INSTALLED, READY, Program, Programs, eventually
from tests.support.sql import Sql
from tests.support.tools import NODE, client_program

ROOT = Path(__file__).parents[3]
COMMANDS = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")


class Site:
    """A web server that runs, and requests to it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._http = httpx.Client(base_url=self._address())

    def get(self, path: str) -> httpx.Response:
        return self._http.get(path)

    def post(self, path: str, json: Any) -> httpx.Response:
        return self._http.post(path, json=json)

    def close(self) -> None:
        self._http.close()

    def _address(self) -> str:
        """Return the address on which a server listens; each server prints it elsewhere."""

        def look() -> str | None:
            said = self.program.out + self.program.err
            assert self.program.is_running, said
            match = ADDRESS.search(said)
            return match and match[0]

        found = eventually(look, "the server prints its address")
        assert found is not None
        return found


class Example:
    """A copy of one folder under examples/, and terminals in it."""

    def __init__(self, folder: Path, terminals: Programs) -> None:
        self.folder = folder
        self._terminals = terminals
        self._sites: list[Site] = []

    @property
    def commands(self) -> list[str]:
        """The commands of its README, line by line."""
        text = (self.folder / "README.md").read_text(encoding="utf-8")
        return [line for block in COMMANDS.findall(text) for line in block.splitlines() if line]

    def command(self, words: str) -> str:
        """The one command of the README that begins with these words."""
        [found] = [each for each in self.commands if each.startswith(words)]
        return found

    def start(self, words: str, **variables: str) -> Program:
        """Type that command in a separate terminal; a signal reaches the program itself."""
        command = self.command(words)
        return self._start(command, ["bash", "-c", f"exec {command}"], variables)

    def serve(self, words: str, **variables: str) -> Site:
        """Type the command of a web server; the site, once it listens."""
        # Some say it on standard output, which would be kept until there is more of it.
        site = Site(self.start(words, PYTHONUNBUFFERED="1", **variables))
        self._sites.append(site)
        return site

    def work(self, words: str = "graphile-worker --app") -> Program:
        """Type the command of a worker; the worker, once it looks for jobs."""
        program = self.start(words)
        program.wait_for_line(READY)
        return program

    def type(self, words: str, **variables: str) -> str:
        """What that command prints, once it has ended well."""
        command = self.command(words)
        program = self._start(command, ["bash", "-ec", command], variables)
        assert program.end() == 0, program.out + program.err
        return program.out

    def _start(self, command: str, in_shell: list[str], variables: dict[str, str]) -> Program:
        plain = split_plain_command(command, {})
        if plain is None or plain[1] or plain[0][0] != "graphile-worker":
            return self._terminals.start(in_shell, variables)
        # Without a shell, a fork can run it.
        return self._terminals.start([INSTALLED, *plain[0][1:]], variables)

    def run(self, *command: str) -> str:
        """What a command prints that the README does not have, once it has ended well."""
        program = self._terminals.start(command, {})
        assert program.end() == 0, program.out + program.err
        return program.out

    def passes_its_own_tests(self) -> None:
        """Run the tests that lie in its folder, as a reader would who has tried it before."""
        self.run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")

    def close(self) -> None:
        for site in self._sites:
            site.close()


@pytest.fixture
def example(
    request: pytest.FixtureRequest, empty_database: TestDatabase, tmp_path: Path
) -> Iterator[Example]:
    """The example that the test module is named after: test_sql_trigger.py is sql-trigger."""
    name = request.path.stem.removeprefix("test_").replace("_", "-")
    folder = tmp_path / name
    others = shutil.ignore_patterns("__pycache__", "node_modules", ".venv")
    shutil.copytree(ROOT / "examples" / name, folder, ignore=others)
    path = os.pathsep.join([*map(str, _programs()), os.environ["PATH"]])
    with Programs(folder, DATABASE_URL=empty_database.url, PATH=path) as terminals:
        found = Example(folder, terminals)
        yield found
        found.close()


@pytest.fixture
def example_sql(empty_database: TestDatabase) -> Iterator[Sql]:
    """A connection for looking behind the scenes of the example."""
    connection = Sql(empty_database.dsn, empty_database.schema)
    yield connection
    connection.close()


def _programs() -> list[Path]:
    """Where a reader's shell finds what they have installed: ours, psql, node."""
    return [Path(sys.executable).parent, client_program("psql").parent, NODE.parent]


@pytest.fixture
def prepared(example: Example) -> Example:
    """The example with the queue and its own tables, as after what its README calls Prepare."""
    example.type("graphile-worker migrate")
    example.type('psql "$DATABASE_URL" -f schema.sql')
    return example
