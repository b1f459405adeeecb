"""Listener: hears of new jobs and of migrations, on a connection for that alone, for ever."""

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable

from graphile_worker.db.database import Database
from graphile_worker.db.listening import Flooded, Listening, Notification
from graphile_worker.db.retry import delay_after
from graphile_worker.events import (
    ListenConnecting,
    ListenFailed,
    ListenNotified,
    ListenReleased,
    ListenStarted,
)
from graphile_worker.hooks import Hooks
from graphile_worker.lease import Lease

JOBS = "jobs:insert"
MIGRATIONS = "worker:migrate"

# Seconds of silence after which the server is asked whether it is still there, and may take to
# answer: a connection whose other end vanished looks like one on which nothing happens.
SILENCE = 5.0
LONGEST_PAUSE = 0.6

# Seconds between two looks at the ledger: anybody may say that it has changed.
LOOK_EVERY = 1.0

# Seconds for which a flood of notifications keeps a worker from listening, and between the looks
# for jobs that it takes instead.
POLL_FOR = 10.0
POLL_EVERY = 0.2


class Listener:
    """Calls `on_jobs` with how many were added, None for who knows, and `on_migration`."""

    def __init__(
        self,
        database: Database,
        lease: Lease,
        hooks: Hooks,
        *,
        on_jobs: Callable[[int | None], None],
        on_migration: Callable[[], Awaitable[None]],
    ) -> None:
        self._db = database
        self._lease = lease
        self._hooks = hooks
        self._on_jobs = on_jobs
        self._on_migration = on_migration
        self._attempts = 0
        self._looked_at = -math.inf
        # When to look at the ledger, if somebody said so.
        self._look_at: float | None = None

    async def run(self) -> None:
        while True:
            try:
                await self.listen_once()
            except Exception as error:
                self._hooks.emit(ListenFailed(pool_id=self._lease.pool_id, error=error))
                if isinstance(error, Flooded):
                    await self._poll()
            await asyncio.sleep(delay_after(self._attempts, LONGEST_PAUSE))
            self._attempts += 1

    async def listen_once(self) -> None:
        """Connect and listen; raises when that is over."""
        self._hooks.emit(ListenConnecting(pool_id=self._lease.pool_id, attempts=self._attempts))
        async with self._db.listen(JOBS, MIGRATIONS) as heard:
            self._attempts = 0
            self._hooks.emit(ListenStarted(pool_id=self._lease.pool_id))
            try:
                await self._catch_up()
                while True:
                    await self._hear(heard)
            finally:
                self._hooks.emit(ListenReleased(pool_id=self._lease.pool_id))

    async def _catch_up(self) -> None:
        """Nobody told us what happened before we listened."""
        self._on_jobs(None)
        await self._look_at_ledger()

    async def _hear(self, heard: Listening) -> None:
        notification = await heard.next(self._patience())
        if notification is not None:
            self._heed(notification)
        elif self._look_at is None:
            await heard.check(SILENCE)
        if self._look_at is not None and time.monotonic() >= self._look_at:
            await self._look_at_ledger()

    async def _poll(self) -> None:
        """Look for jobs every now and then, in place of listening."""
        until = time.monotonic() + POLL_FOR
        while time.monotonic() < until:
            self._on_jobs(None)
            await asyncio.sleep(POLL_EVERY)

    def _patience(self) -> float:
        if self._look_at is None:
            return SILENCE
        return max(0.0, self._look_at - time.monotonic())

    def _heed(self, notification: Notification) -> None:
        self._announce(notification)
        if notification.channel == JOBS:
            is_one = not notification.others
            self._on_jobs(job_count(notification.payload) if is_one else None)
        elif notification.channel == MIGRATIONS:
            self._look_at = self._looked_at + LOOK_EVERY

    async def _look_at_ledger(self) -> None:
        self._look_at = None
        self._looked_at = time.monotonic()
        await self._on_migration()

    def _announce(self, notification: Notification) -> None:
        if self._hooks.hears(ListenNotified):
            self._hooks.emit(
                ListenNotified(
                    pool_id=self._lease.pool_id,
                    channel=notification.channel,
                    payload=notification.payload,
                )
            )


def job_count(payload: str) -> int:
    """How many jobs a notification speaks of; one if it does not say so in a way we know."""
    try:
        count = json.loads(payload)["count"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return 1
    return count if isinstance(count, int) and 0 <= count < 1_000_000 else 1
