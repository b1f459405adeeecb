"""The quickstart followed to the letter: an empty folder, the built wheel, nothing else typed."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import TestDatabase
from tests.support.processes import READY, Program, Programs, eventually
from tests.support.tiers import size
from tests.support.tools import client_program
from tests.support.wheel import ROOT, interpreter

# What stands in the page for the reader's own.
DATABASE = "postgres://postgres@localhost/postgres"
CHECKOUT = "path/to/checkout"
STEP = re.compile(r"^\d\. (.*?)^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`(\S+\.py)`")

# What differs from one run to the next, and nothing else.
DIFFERING = re.compile(r"pypool-[0-9a-f]{18}|\d+\.\d\d(?= ms)")

# Seconds from the first command to the greeting.
SOON = size(gate=120, nightly=60)


@dataclass(frozen=True)
class Steps:
    """What a reader types, and what they then see."""

    install: str
    file: str
    task: str
    start: str
    add: str
    log: str


def steps_of(page: str, heading: str) -> Steps:
    text = (ROOT / page).read_text(encoding="utf-8")
    section = re.search(rf"^## {heading}\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    assert section is not None
    # Before the first step, the page shows how to get a database.
    _, first, rest = section[1].partition("\n1. ")
    steps = [step.groups() for step in STEP.finditer(first + rest)]
    words, kinds, blocks = zip(*steps, strict=True)
    assert list(kinds) == ["sh", "python", "sh", "sh", "text"]
    assert rest.partition("\n<!--")[0].count("\n```") == 2 * len(kinds), "a block is not a step"
    named = FILE.search(words[1])
    assert named is not None
    install, task, start, add, log = blocks
    return Steps(install, named[1], task, start, add, log)


@pytest.fixture
def steps() -> Steps:
    return steps_of("docs/get-started/quickstart.md", "Run your first job")


@pytest.fixture
def terminals(dist: Path, tmp_path: Path) -> Iterator[Programs]:
    """Terminals in an empty folder of a machine that has Python and psql, and finds our wheel."""
    python = interpreter("3.11")
    if python is None:
        pytest.skip("Python 3.11 is not on this machine")
    folder = tmp_path / "empty"
    folder.mkdir()
    path = [Path(python).parent, "/usr/bin", "/bin", client_program("psql").parent]
    found = f"{dist} {os.environ.get('PIP_FIND_LINKS', '')}"
    with Programs(folder, PATH=":".join(map(str, path)), PIP_FIND_LINKS=found) as programs:
        yield programs


class Terminal:
    """A shell that does what is typed."""

    def __init__(self, terminals: Programs, database: TestDatabase) -> None:
        theirs, self._keyboard = os.pipe()
        without = {"PYTHONPATH": None, "VIRTUAL_ENV": None}
        self.shell: Program = terminals.start(
            ["bash", "-es"], without, stdin=theirs, start_new_session=True
        )
        os.close(theirs)
        self._database = database.url

    def type(self, block: str) -> None:
        block = block.replace(DATABASE, self._database).replace(CHECKOUT, "graphile-worker")
        os.write(self._keyboard, block.encode())

    def press_ctrl_c(self) -> None:
        os.killpg(self.shell.pid, signal.SIGINT)

    def end(self) -> int:
        os.close(self._keyboard)
        return self.shell.end()


@pytest.mark.single_version
@pytest.mark.timeout(180)
@pytest.mark.feature("F9", "F203")
def test_the_quickstart_runs_a_job_within_a_minute(
    steps: Steps,
    terminals: Programs,
    empty_database: TestDatabase,
    figure: Callable[[str], None],
):
    first = Terminal(terminals, empty_database)
    began = time.monotonic()
    first.type(steps.install)
    command = terminals.folder / ".venv/bin/graphile-worker"
    eventually(command.exists, "it is installed", within=SOON)
    terminals.write(steps.file, steps.task)
    first.type(steps.start)
    first.shell.wait_for_line(READY)
    second = Terminal(terminals, empty_database)
    second.type(steps.add)
    first.shell.wait_for_line("Sending 'Your order' to ada@example.com")
    took = time.monotonic() - began
    first.shell.wait_for_line("completed job 3")
    first.press_ctrl_c()

    assert (first.end(), second.end()) == (0, 0), second.shell.err
    assert alike(first.shell.err).startswith(alike(steps.log))
    assert first.shell.err.endswith(")] INFO: stopping: received SIGINT\n")
    figure(f"quickstart: the first job ran {took:.1f} s after the first command")
    assert took < SOON


def test_the_readme_has_the_same_steps(steps: Steps):
    assert steps_of("README.md", "Quickstart") == steps


def alike(log: str) -> str:
    """The lines of the worker, without what differs from one run to the next."""
    lines = [line for line in log.splitlines(keepends=True) if line.startswith("[")]
    return DIFFERING.sub("…", "".join(lines))
