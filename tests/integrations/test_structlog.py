"""The ids of a job in lines of structlog, with a real worker."""

import asyncio
import runpy
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from structlog.testing import CapturingLogger, CapturingLoggerFactory

import graphile_worker.contrib.structlog
from graphile_worker import App, ConfigurationError, Hooks, JobContext, SyncJobContext
from graphile_worker.contrib.structlog import instrument

pytestmark = pytest.mark.single_version

NAMES = {"job_id", "task", "attempt", "pool_id", "worker_id"}


@pytest.fixture
def logger() -> Iterator[CapturingLogger]:
    """The logger that structlog writes to."""
    factory = CapturingLoggerFactory()
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, lambda _, __, line: ((), line)],
        logger_factory=factory,
    )
    yield factory.logger
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


async def test_lines_of_a_task_carry_the_ids_of_its_job(
    app: App[None], logger: CapturingLogger
) -> None:
    seen: dict[str, dict[str, Any]] = {}
    log = structlog.get_logger()

    @app.task
    async def on_loop(ctx: JobContext) -> None:
        seen["on_loop"] = {"pool_id": ctx.pool_id, "worker_id": ctx.worker_id}
        await asyncio.sleep(0)
        log.info("hello", size=7)

    @app.task
    def in_thread(ctx: SyncJobContext) -> None:
        seen["in_thread"] = {"pool_id": ctx.pool_id, "worker_id": ctx.worker_id}
        log.info("hello", size=7)

    instrument(app)
    instrument(app)
    for task in (on_loop, in_thread):
        job = await task.aenqueue()
        seen[task.identifier] = {}
        await app.worker().run_once()
        seen[task.identifier] |= {"job_id": job.id, "task": task.identifier, "attempt": 1}

    expected = [{"event": "hello", "size": 7, **seen[name]} for name in ("on_loop", "in_thread")]
    assert [call.kwargs for call in logger.calls] == expected


async def test_nothing_stays_bound_after_a_job(app: App[None], logger: CapturingLogger) -> None:
    bound: list[dict[str, Any]] = []
    structlog.contextvars.bind_contextvars(program="shop", task="of the program")

    @app.task(max_attempts=1)
    async def on_loop() -> None:
        structlog.contextvars.bind_contextvars(user="Ada")
        raise ValueError("no such name")

    @app.task(max_attempts=1)
    def in_thread() -> None:
        structlog.contextvars.bind_contextvars(user="Ada")
        raise ValueError("no such name")

    @app.task
    async def later_on_loop() -> None:
        bound.append(structlog.contextvars.get_contextvars())

    @app.task
    def later_in_thread() -> None:
        bound.append(structlog.contextvars.get_contextvars())

    instrument(app)
    for task in (on_loop, in_thread, later_on_loop, later_in_thread):
        await task.aenqueue()
    # One worker and one thread run them one after the other.
    await app.worker(concurrency=1).run_once()

    assert [each["task"] for each in bound] == ["later_on_loop", "later_in_thread"]
    assert all(each.keys() == NAMES | {"program"} for each in bound)
    assert structlog.contextvars.get_contextvars() == {
        "program": "shop",
        "task": "of the program",
    }


async def test_jobs_at_the_same_time_share_nothing(app: App[None], logger: CapturingLogger) -> None:
    log = structlog.get_logger()
    all_started, started = asyncio.Event(), []
    together = threading.Barrier(2, timeout=20)

    @app.task
    async def on_loop(number: int) -> None:
        started.append(number)
        if len(started) == 2:
            all_started.set()
        await all_started.wait()
        log.info("hello", number=number)

    @app.task
    def in_thread(number: int) -> None:
        together.wait()
        log.info("hello", number=number)

    instrument(app)
    ids = [(await task.aenqueue(n)).id for n in range(2) for task in (on_loop, in_thread)]
    await app.worker(concurrency=4).run_once()

    lines = [call.kwargs for call in logger.calls]
    found = {(each["task"], each["number"]): each["job_id"] for each in lines}
    assert found == dict(
        zip([(task, n) for n in range(2) for task in ("on_loop", "in_thread")], ids, strict=True)
    )


def test_invalid_arguments_of_instrument_are_rejected() -> None:
    instrument(Hooks())
    with pytest.raises(ConfigurationError, match="expected an App or Hooks, got str"):
        instrument("app")  # type: ignore[arg-type]  # what the test is about


def test_without_structlog_the_error_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "structlog.contextvars", None)

    message = r'^this needs structlog: pip install "graphile-worker\[structlog\]"$'
    with pytest.raises(ImportError, match=message):
        runpy.run_path(graphile_worker.contrib.structlog.__file__)
