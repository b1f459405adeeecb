"""`graphile-worker demo`: its screen, its summary, and a database that it leaves as it was."""

import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import TestDatabase
from tests.support.container import children
from tests.support.processes import (
    CLEARED_VARIABLES,
    INSTALLED,
    Program,
    Programs,
    eventually,
    is_process_alive,
)
from tests.support.sql import Sql
from tests.support.tiers import size
from tests.support.tmux import Tmux

# Three processes start, and a busy machine has few cores.
pytestmark = [pytest.mark.single_version, pytest.mark.timeout(180)]

STARTING = "demo: starting 2 workers in schema graphile_worker_demo_"
ENDED = "demo: ended, dropped schema graphile_worker_demo_"
TASKS = ["send_email", "render_video", "call_webhook", "update_ledger"]
WIDE = (160, 50)


@pytest.fixture
def programs(tmp_path: Path, empty_database: TestDatabase) -> Iterator[Programs]:
    """Programs whose environment names an empty database."""
    with Programs(tmp_path, DATABASE_URL=empty_database.url) as programs:
        yield programs


def list_schemas(sql: Sql) -> list[str]:
    found = sql.run("select nspname from pg_namespace where nspname like 'graphile_worker%'")
    return sorted(name for (name,) in found)


def start_in_terminal(tmp_path: Path, database: TestDatabase) -> Tmux:
    inherited = {
        name: value for name, value in os.environ.items() if not CLEARED_VARIABLES.match(name)
    }
    environment = {**inherited, "DATABASE_URL": database.url, "LC_ALL": "C.UTF-8"}
    command = shlex.join([INSTALLED, "demo"])
    return Tmux(tmp_path, command, environment, columns=WIDE[0], rows=WIDE[1])


def wait_for_jobs(sql: Sql, demo: Program) -> None:
    def has_run() -> bool:
        [name, *_] = list_schemas(sql) or [""]
        return bool(name) and sql.run(f"select count(*) from {name}._private_jobs")[0][0] > 0

    demo.wait_for_line(STARTING)
    eventually(has_run, "the producer adds jobs")


@pytest.mark.parametrize("end", size(gate=["q"], nightly=["q", "C-c", "SIGTERM"]))
def test_a_terminal_shows_top_and_the_schema_is_dropped_at_the_end(
    tmp_path, empty_database, behind, end
):
    with start_in_terminal(tmp_path, empty_database) as terminal:
        terminal.wait_for_text("graphile-worker top")
        terminal.wait_for_text("WORKERS 2 alive")
        # Its jobs wait for their retries, so every snapshot shows the task.
        screen = "\n".join(terminal.wait_for_text("call_webhook"))
        if end == "SIGTERM":
            os.kill(terminal.pid, signal.SIGTERM)
        else:
            terminal.press(end)
        terminal.wait_for_text(ENDED)
        terminal.wait_for_text("ended 0")

    assert "graphile_worker_demo_" in screen
    assert list_schemas(behind) == []


def test_without_a_terminal_the_demo_prints_a_summary(programs, behind):
    done = programs.run_to_end("demo", "--seconds", "4")

    assert done.code == 0
    assert "WORKERS 2 alive" in done.out
    assert any(task in done.out for task in TASKS)
    assert STARTING in done.err
    assert ENDED in done.err
    assert list_schemas(behind) == []


def test_the_config_file_and_the_crontab_of_the_folder_do_not_matter(programs, behind):
    programs.write("graphile-worker.toml", "health_port = 1\nschema = 'mine'\next_schema = 'me'")
    programs.write("crontab", "* * * * * unknown")

    done = programs.run_to_end("demo", "--seconds", "1", GRAPHILE_WORKER_PROCESSES="3")

    assert (done.code, "WORKERS 2 alive" in done.out) == (0, True)
    assert behind.run("select 1 from pg_namespace where nspname in ('mine', 'me')") == []


def test_demo_rejects_a_schema(programs):
    done = programs.run_to_end("-s", "jobs", "demo")

    assert done.code == 1
    assert done.err == (
        "graphile-worker: demo creates its own temporary schema. Remove --schema.\n"
    )


@pytest.mark.parametrize(
    "number",
    size(gate=[signal.SIGTERM], nightly=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP]),
)
def test_a_signal_ends_the_demo_and_its_workers_and_drops_the_schema(programs, behind, number):
    demo = programs.command("demo", "--seconds", "600")
    wait_for_jobs(behind, demo)
    workers = children(demo.pid)

    code = demo.stop(number)

    assert code == 128 + number
    assert list_schemas(behind) == []
    assert not any(map(is_process_alive, workers))


def test_the_next_demo_drops_the_schema_of_a_killed_one_but_not_of_a_running_one(programs, behind):
    killed = programs.command("demo", "--seconds", "600")
    wait_for_jobs(behind, killed)
    workers = children(killed.pid)
    left_behind = list_schemas(behind)
    killed.kill()
    eventually(lambda: not any(map(is_process_alive, workers)), "the workers stop with the demo")
    # The server notices the end of a session within moments.
    eventually(lambda: not has_locks(behind), "the lock is released")

    running = programs.command("demo", "--seconds", "600")
    wait_for_jobs(behind, running)
    in_use = list_schemas(behind)
    done = programs.run_to_end("demo", "--seconds", "1")

    assert done.code == 0
    assert len(left_behind) == len(in_use) == 2
    assert not set(left_behind) & set(in_use)
    assert list_schemas(behind) == in_use
    assert running.stop() == 143
    assert list_schemas(behind) == []


def has_locks(sql: Sql) -> bool:
    return bool(sql.run("select 1 from pg_locks where locktype = 'advisory'"))
