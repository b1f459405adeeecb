"""Lifeline: what keeps a pool alive in the eyes of others, and how that ends."""

import asyncio
import logging
from contextlib import suppress
from typing import Any

import pytest

from graphile_worker import Hooks, WorkerOptions, lifeline
from graphile_worker.db.reserved import WorkerDatabases
from graphile_worker.lease import Lease
from graphile_worker.lifeline import Lifeline
from graphile_worker.logs import Logger
from graphile_worker.maintenance.heartbeat import Heartbeat
from graphile_worker.sql.identifiers import Schemas


class NoDatabase:
    schemas = Schemas.named("jobs")

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
    monkeypatch.setattr(Heartbeat, "sign_off", lambda _: _note(cancellations))
    monkeypatch.setattr(lifeline, "CANCEL_AGAIN_AFTER", 0.01)
    databases = WorkerDatabases(own, own, heartbeat=own if is_beside else None)
    options = WorkerOptions(recovery=None, blocked_after=None)
    logger = Logger(logging.getLogger("test"))

    async with Lifeline(Lease(None), databases, Hooks(), logger, options, {}):
        await asyncio.sleep(0)

    # It would beat after the pool has signed off, and take itself for swept.
    assert cancellations == ["lost", "heard", "signed off"]


async def _note(cancellations: list[str]) -> None:
    cancellations.append("signed off")
