"""The event loop of the command: uvloop if it is installed, or asyncio's with a flag."""

import signal

import pytest

from tests.support.processes import READY, Programs
from tests.support.sql import Sql

pytestmark = pytest.mark.feature("F303")

LOGS_LOOP = """
    import asyncio

    async def task(payload, ctx):
        ctx.logger.info("runs on %s", type(asyncio.get_running_loop()).__module__)
"""

# Python raises this when a package is not installed.
NOT_INSTALLED = "raise ModuleNotFoundError('No module named uvloop', name='uvloop')"


@pytest.fixture
def programs(programs: Programs) -> Programs:
    programs.write("tasks/it.py", LOGS_LOOP)
    programs.write("without_uvloop/uvloop.py", NOT_INSTALLED)
    return programs


@pytest.fixture
def without_uvloop(programs: Programs) -> str:
    """Return a module path on which uvloop cannot be imported."""
    return str(programs.folder / "without_uvloop")


def add(sql: Sql) -> None:
    sql.run("select from :schema.add_job('it')")


@pytest.mark.every_version
@pytest.mark.parametrize(("flags", "module"), [([], "uvloop"), (["--loop", "asyncio"], "asyncio.")])
def test_a_worker_runs_on_uvloop_by_default(programs, sql, flags, module):
    add(sql)

    done = programs.run_to_end("--once", *flags)

    assert done.code == 0
    assert f"runs on {module}" in done.err


def test_where_uvloop_is_not_installed_a_worker_runs_on_asyncio(programs, sql, without_uvloop):
    add(sql)

    done = programs.run_to_end("--once", PYTHONPATH=without_uvloop)

    assert done.code == 0
    assert "runs on asyncio." in done.err


def test_uvloop_without_its_package_names_the_extra_to_install(programs, without_uvloop):
    done = programs.run_to_end("--once", "--loop", "uvloop", PYTHONPATH=without_uvloop)

    assert done.code == 1
    assert done.err == (
        "graphile-worker: --loop uvloop: uvloop is not installed. "
        "Run pip install graphile-worker[uvloop].\n"
    )


def test_processes_run_on_the_loop_of_their_flags(programs, sql):
    add(sql)

    done = programs.run_to_end("--once", "-p", "2", "--loop", "asyncio")

    assert done.code == 0
    assert "runs on asyncio." in done.err


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_debug_line_names_the_event_loop(programs, loop):
    done = programs.run_to_end("--once", "--loop", loop, GRAPHILE_LOGGER_DEBUG="1")

    assert f"event loop: {loop}" in done.err


@pytest.mark.every_version
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_stops_a_worker_on_either_loop(programs, loop, number):
    worker = programs.command("--loop", loop)
    worker.wait_for_line(READY)

    assert worker.stop(number) == 0
    assert f"stopping: received {number.name}" in worker.err
