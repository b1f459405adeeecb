"""The command as process 1 of a container: signals, exit codes and orphans."""

import os
import pty
import signal
import socket

import pytest

from tests.support.container import Container, children
from tests.support.processes import INSTALLED, READY, Programs, eventually
from tests.support.sql import Sql

pytestmark = [
    pytest.mark.feature("F308"),
    pytest.mark.skipif(os.getuid() != 0, reason="only root may create a process namespace"),
]

WAITS = """\
    import asyncio

    async def task(payload, ctx):
        ctx.logger.info("begins to wait")
        await asyncio.sleep(payload.get("seconds", 600))
"""
# Leaves a process behind that has left its process group, and so becomes an orphan.
LEAVES = """\
    #!/bin/sh
    setsid sh -c '(until [ -e go ]; do sleep 0.02; done; echo > gone) & echo > left'
"""


@pytest.fixture
def programs(programs: Programs) -> Programs:
    programs.write("tasks/wait.py", WAITS)
    return programs


def test_a_signal_shuts_down_gracefully(programs: Programs, sql: Sql):
    with Container(programs, INSTALLED) as container:
        container.wait_for_line(READY)

        assert container.stop(signal.SIGTERM) == 0

    assert "stopping: received SIGTERM" in container.err


def test_the_second_signal_ends_the_graceful_shutdown(programs: Programs, sql: Sql):
    sql.run("select :schema.add_job('wait')")
    with Container(programs, INSTALLED) as container:
        container.wait_for_line("begins to wait")
        container.signal(signal.SIGTERM)
        container.wait_for_line("stopping: received SIGTERM")

        assert container.stop(signal.SIGTERM) == 128 + signal.SIGTERM

    assert sql.run("select attempts, locked_by from :schema.jobs") == [(0, None)]


def test_ctrl_c_counts_as_one_signal(programs: Programs, sql: Sql):
    sql.run("select :schema.add_job('wait', '{\"seconds\": 1}')")
    terminal, its_end = pty.openpty()
    with Container(
        programs, INSTALLED, wrapped_in=("setsid", "--ctty"), stdin=its_end
    ) as container:
        container.wait_for_line("begins to wait")
        os.write(terminal, b"\x03")

        assert container.end() == 0

    assert "completed job" in container.err


def test_a_closed_terminal_stops_the_worker(programs: Programs):
    terminal, its_end = pty.openpty()
    with Container(
        programs, INSTALLED, wrapped_in=("setsid", "--ctty"), stdin=its_end
    ) as container:
        container.wait_for_line(READY)
        os.close(its_end)
        os.close(terminal)

        container.wait_for_line("stopping: received SIGHUP")
        container.end()


def test_a_signal_ends_other_commands_too(programs: Programs):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgres://127.0.0.1:{silent.getsockname()[1]}/nobody"
        with Container(
            programs, INSTALLED, "migrate", variables={"DATABASE_URL": url}
        ) as container:
            connection, _ = silent.accept()
            with connection:
                assert container.stop(signal.SIGTERM) == 128 + signal.SIGTERM


def test_a_signal_stops_the_parent_of_several_processes_too(programs: Programs):
    with Container(programs, INSTALLED, "-p", "2") as container:
        container.wait_for_line(READY)

        assert container.stop(signal.SIGTERM) == 0


def test_a_failed_command_keeps_its_exit_code(programs: Programs):
    with Container(programs, INSTALLED, "--app", "missing:app") as container:
        assert container.end() == 1

    assert "graphile-worker: " in container.err


def test_a_killed_worker_sets_the_exit_code(programs: Programs):
    with Container(programs, INSTALLED) as container:
        container.wait_for_line(READY)
        [worker] = children(container.process_one)
        os.kill(worker, signal.SIGKILL)

        assert container.end() == 128 + signal.SIGKILL


@pytest.mark.feature("F121")
def test_orphans_of_executables_are_reaped(programs: Programs, sql: Sql):
    programs.write("tasks/leave.sh", LEAVES).chmod(0o755)
    sql.run("select :schema.add_job('leave')")
    with Container(programs, INSTALLED) as container:
        container.wait_for_line("completed job")
        assert len(children(container.process_one)) == 2

        programs.write("go", "")

        eventually((programs.folder / "gone").exists, "the orphan ends")
        eventually(lambda: len(children(container.process_one)) == 1, "nothing is left of it")
        assert container.stop(signal.SIGTERM) == 0
