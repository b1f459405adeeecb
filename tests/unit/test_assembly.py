"""A worker as a whole: what runs beside its pool ends with it."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from graphile_worker import _assembly


async def test_what_runs_beside_the_pool_ends_though_a_cancellation_got_lost(monkeypatch):
    cancellations = []

    async def lose_the_first() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        cancellations.append("lost")
        try:
            await asyncio.Event().wait()
        finally:
            cancellations.append("heard")

    def stubborn(plan: object, parts: object, *, once: bool) -> Iterator[Coroutine[Any, Any, None]]:
        yield lose_the_first()

    monkeypatch.setattr(_assembly, "_iter_background_tasks", stubborn)
    monkeypatch.setattr(_assembly, "CANCEL_RETRY_SECONDS", 0.01)
    plan: Any = None
    parts: Any = SimpleNamespace(pool=None)

    async with _assembly.background_tasks(plan, parts):
        await asyncio.sleep(0)

    assert cancellations == ["lost", "heard"]
