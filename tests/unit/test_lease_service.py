"""LeaseService: what keeps a pool alive in the eyes of others, and how that ends."""

import asyncio
import logging
from contextlib import suppress
from typing import Any

import pytest

from graphile_worker import Hooks, WorkerOptions
from graphile_worker._db.worker_connections import WorkerConnections
from graphile_worker._lease.heartbeat import Heartbeat
from graphile_worker._lease.lease import Lease
from graphile_worker._lease.service import LeaseService
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._support.logs import Logger


def find_no_job(pool_ids: object, frame: object) -> None:
    return None


class NoDatabase:
    schemas = Schemas.from_names("jobs")

    async def close(self) -> None: ...


@pytest.mark.parametrize("is_beside", [False, True])
async def test_the_heartbeat_ends_though_a_cancellation_got_lost(monkeypatch, is_beside):
    cancellations: list[str] = []
    own: Any = NoDatabase()

    async def lose_the_first(_heartbeat: Heartbeat) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        cancellations.append("lost")
        try:
            await asyncio.Event().wait()
        finally:
            cancellations.append("heard")

    async def nothing(_heartbeat: Heartbeat) -> None: ...

    monkeypatch.setattr(Heartbeat, "run", lose_the_first)
    monkeypatch.setattr(Heartbeat, "register", nothing)
    monkeypatch.setattr(Heartbeat, "unregister", lambda _: _note(cancellations))
    databases = WorkerConnections(own, own, heartbeat=own if is_beside else None)
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
        cancel_retry_seconds=0.01,
    ):
        await asyncio.sleep(0)

    # It would beat after the pool has signed off, and take itself for swept.
    assert cancellations == ["lost", "heard", "signed off"]


async def _note(cancellations: list[str]) -> None:
    cancellations.append("signed off")
