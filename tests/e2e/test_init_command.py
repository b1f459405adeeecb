"""`graphile-worker init`: files that work as they are, and never replace others."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphile_worker._cli.commands.init import FILE_NAMES, NEXT_COMMANDS
from tests.conftest import TestDatabase
from tests.support.processes import Programs

pytestmark = [pytest.mark.single_version]


@pytest.fixture
def programs(tmp_path: Path, empty_database: TestDatabase) -> Iterator[Programs]:
    """Programs in an empty folder, with an empty database."""
    with Programs(tmp_path, DATABASE_URL=empty_database.url) as programs:
        yield programs


def list_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_init_writes_three_files_and_prints_the_next_three_commands(programs, tmp_path):
    done = programs.run_to_end("init")

    assert (done.code, done.err) == (0, "")
    assert list_files(tmp_path) == sorted(FILE_NAMES)
    assert [line.strip() for line in done.out.splitlines() if line.startswith("  ")] == [
        *NEXT_COMMANDS
    ]


def test_init_creates_the_folder_and_the_commands_enter_it(programs, tmp_path):
    done = programs.run_to_end("init", "my shop")

    assert (done.code, done.err) == (0, "")
    assert list_files(tmp_path / "my shop") == sorted(FILE_NAMES)
    assert "cd 'my shop' && docker compose up" in done.out


def test_a_worker_runs_the_job_of_the_printed_command(programs):
    programs.run_to_end("init")

    worker = programs.worker("--app", "worker")
    added = programs.run_to_end("add", "--app", "worker", "send_email", '{"to": "ada@example.com"}')
    worker.wait_for_line("sending 'Hello' to ada@example.com")
    worker.wait_for_line("completed job 1 (send_email)")

    assert added.out == "added job 1 (send_email)\n"


def test_the_tests_that_init_writes_pass(programs, tmp_path):
    programs.run_to_end("init")

    done = programs.start(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:django", "-q"], {}
    )

    assert done.end() == 0, done.out
    assert "2 passed" in done.out


@pytest.mark.nightly
def test_the_files_that_init_writes_are_typed(programs, tmp_path):
    programs.run_to_end("init")
    files = [name for name in FILE_NAMES if name.endswith(".py")]

    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", "/dev/null", *files],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", FILE_NAMES)
def test_an_existing_file_is_never_overwritten(programs, tmp_path, name):
    programs.write(name, "mine\n")

    done = programs.run_to_end("init")

    assert done.code == 1
    assert done.err.startswith(
        f"graphile-worker: {tmp_path} already has {name}; nothing was written."
    )
    assert list_files(tmp_path) == [name]
    assert (tmp_path / name).read_text() == "mine\n"


def test_a_broken_link_counts_as_an_existing_file(programs, tmp_path):
    (tmp_path / "worker.py").symlink_to("elsewhere.py")

    done = programs.run_to_end("init")

    assert done.code == 1
    assert list_files(tmp_path) == ["worker.py"]


def test_a_folder_that_cannot_be_created_is_one_line(programs):
    programs.write("file", "")

    done = programs.run_to_end("init", "file/shop")

    assert done.code == 1
    assert done.err == "graphile-worker: file/shop cannot be written: Not a directory.\n"
