"""LeaseService: stops the heartbeat before the pool is unregistered."""

import asyncio
import logging
from contextlib import suppress
from typing import Any

import pytest

from graphile_worker import Hooks, WorkerOptions
from graphile_worker._db.worker_connections import WorkerConnections
from graphile_worker._lease.heartbeat import Heartbeat
from graphile_worker._lease.lease import Lease
from graphile_worker._lease.service import LeaseService, LeaseTimings, _build_details
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._support.logs import Logger


def find_no_job(pool_ids: object, frame: object) -> None:
    return None


class NoDatabase:
    schemas = Schemas.from_names("jobs")

    async def close(self) -> None: ...


@pytest.mark.parametrize("has_own_connection", [False, True])
async def test_the_heartbeat_ends_though_a_cancellation_got_lost(monkeypatch, has_own_connection):
    cancellations: list[str] = []
    own: Any = NoDatabase()

    async def lose_the_first(_heartbeat: Heartbeat) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        cancellations.append("lost")
        try:
            await asyncio.Event().wait()
        finally:
            cancellations.append("received")

    async def do_nothing(_heartbeat: Heartbeat) -> None: ...

    monkeypatch.setattr(Heartbeat, "run", lose_the_first)
    monkeypatch.setattr(Heartbeat, "register", do_nothing)
    monkeypatch.setattr(Heartbeat, "unregister", lambda _: _record_unregistered(cancellations))
    databases = WorkerConnections(own, own, heartbeat=own if has_own_connection else None)
    options = WorkerOptions(recovery=None, warn_blocked_after=None)
    logger = Logger(logging.getLogger("test"))

    async with LeaseService(
        Lease(None),
        databases,
        Hooks(),
        logger,
        options,
        {},
        find_no_job,
        timings=LeaseTimings(cancel_retry_seconds=0.01),
    ):
        await asyncio.sleep(0)

    # A later heartbeat would find its row deleted, and report a lost lease.
    assert cancellations == ["lost", "received", "unregistered"]


def test_the_details_of_a_pool_list_the_limits_of_all_tasks():
    limits = {f"task{number}": [f"limit{number}"] for number in range(200)}

    details = _build_details(WorkerOptions(), limits, None, limits)

    assert details["limits"] == limits
    assert len(details["tasks"]) == 100


async def _record_unregistered(cancellations: list[str]) -> None:
    cancellations.append("unregistered")
