"""The README's way from nothing to a job, followed to the letter in an empty folder."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import TestDatabase
from tests.support.processes import READY, Program, Programs
from tests.support.tools import client_program

ROOT = Path(__file__).parent.parent.parent
SECTION = re.compile(r"^## From nothing to a job\n(.*?)^## ", re.MULTILINE | re.DOTALL)
STEP = re.compile(r"^\d\. (.*?)^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`(\S+\.py)`")

# What differs from one run to the next, and nothing else.
DIFFERING = re.compile(r"worker-[0-9a-f]{18}|\d+\.\d\d(?= ms)")


@dataclass(frozen=True)
class Steps:
    """What a reader of that section types, and what they then see."""

    install: str
    file: str
    task: str
    start: str
    add: str
    log: str


@pytest.fixture(scope="module")
def steps() -> Steps:
    section = SECTION.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert section is not None
    words, kinds, texts = zip(*(step.groups() for step in STEP.finditer(section[1])), strict=True)
    assert list(kinds) == ["sh", "python", "sh", "sh", "text"]
    named = FILE.search(words[1])
    assert named is not None
    install, task, start, add, log = texts
    return Steps(install, named[1], task, start, add, log)


@pytest.fixture
def commands(steps: Steps, tmp_path: Path) -> Path:
    """The folder of the command, freshly installed where that can be done."""
    if importlib.util.find_spec("ensurepip") is None:
        return Path(sys.executable).parent
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    variables = {**os.environ, "PATH": path_with(environment / "bin")}
    subprocess.run(["bash", "-ec", steps.install], cwd=ROOT, env=variables, check=True)
    return environment / "bin"


@pytest.fixture
def terminals(commands: Path, empty_database: TestDatabase, tmp_path: Path) -> Iterator[Programs]:
    """Terminals in an empty folder, in which DATABASE_URL says which database."""
    folder = tmp_path / "empty"
    folder.mkdir()
    path = path_with(commands, client_program("psql").parent)
    with Programs(folder, DATABASE_URL=empty_database.url, PATH=path) as programs:
        yield programs


@pytest.mark.timeout(180)
@pytest.mark.feature("F203")
def test_the_readme_leads_from_nothing_to_a_job(steps: Steps, terminals: Programs):
    terminals.write(steps.file, steps.task)

    worker = typed(terminals, steps.start)
    worker.hear(READY)
    client = typed(terminals, steps.add)
    assert client.end() == 0, client.err
    worker.hear("completed job")

    assert worker.stop(signal.SIGINT) == 0
    assert alike(worker.err) == alike(steps.log)
    assert worker.out == ""


def typed(terminals: Programs, command: str) -> Program:
    # In place of the shell, so that a signal reaches what was typed.
    return terminals.start(["bash", "-c", f"exec {command}"], {})


def path_with(*folders: Path) -> str:
    return os.pathsep.join([*map(str, folders), os.environ["PATH"]])


def alike(log: str) -> str:
    """The log without what differs from one run to the next."""
    return DIFFERING.sub("…", log)
