"""NotificationListener: listens for new jobs, pauses and migrations on its own connection."""

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable

from graphile_worker._db.database import Database
from graphile_worker._db.notifications import Notification, NotificationStream, TooManyNotifications
from graphile_worker._db.retry import compute_backoff
from graphile_worker._lease.lease import Lease
from graphile_worker._sql.queries.pauses import PAUSES_CHANNEL
from graphile_worker._support.lazy_dataclass import LazyKeywordDataclass
from graphile_worker.events import (
    ListenConnecting,
    ListenFailed,
    ListenNotified,
    ListenReleased,
    ListenStarted,
)
from graphile_worker.hooks import Hooks

JOBS_CHANNEL = "jobs:insert"
MIGRATIONS_CHANNEL = "worker:migrate"
CHANNELS = (JOBS_CHANNEL, MIGRATIONS_CHANNEL, PAUSES_CHANNEL)

MAX_BACKOFF_SECONDS = 0.6


class ListenTimings(LazyKeywordDataclass):
    """Intervals and time limits of a listener."""

    connection_check_seconds: float = 5.0
    """Time without a notification after which the connection is checked, and limit of that check:
    a connection to a server that vanished looks idle."""
    migration_check_interval_seconds: float = 1.0
    """Between two reads of the ledger, because any role can send the notification."""
    flood_poll_duration_seconds: float = 10.0
    """After too many notifications a worker polls for this time instead of listening."""
    flood_poll_interval_seconds: float = 0.2


DEFAULT_TIMINGS = ListenTimings()


class NotificationListener:
    """Calls a function for each channel: `on_jobs` with the number of jobs, or None if unknown."""

    def __init__(
        self,
        database: Database,
        lease: Lease,
        hooks: Hooks,
        *,
        on_jobs: Callable[[int | None], None],
        on_migration: Callable[[], Awaitable[None]],
        on_pauses: Callable[[], None] = lambda: None,
        timings: ListenTimings = DEFAULT_TIMINGS,
    ) -> None:
        self._db = database
        self._lease = lease
        self._hooks = hooks
        self._on_jobs = on_jobs
        self._on_migration = on_migration
        self._on_pauses = on_pauses
        self._timings = timings
        self._attempts = 0
        self._migration_checked_at = -math.inf
        # When to read the ledger, after a notification.
        self._check_migration_at: float | None = None

    async def run(self) -> None:
        while True:
            try:
                await self.listen_once()
            except Exception as error:
                self._hooks.emit(ListenFailed(pool_id=self._lease.pool_id, error=error))
                if isinstance(error, TooManyNotifications):
                    await self._poll_during_flood()
            await asyncio.sleep(compute_backoff(self._attempts, MAX_BACKOFF_SECONDS))
            self._attempts += 1

    async def listen_once(self) -> None:
        """Connect, and listen until an error occurs."""
        self._hooks.emit(ListenConnecting(pool_id=self._lease.pool_id, attempts=self._attempts))
        async with self._db.listen(*CHANNELS) as notifications:
            self._attempts = 0
            self._hooks.emit(ListenStarted(pool_id=self._lease.pool_id))
            # A new job does not wait until this asyncio task runs.
            notifications.call_at_once(JOBS_CHANNEL, self._handle_notification)
            try:
                await self._catch_up()
                while True:
                    await self._wait_for_notification(notifications)
            finally:
                self._hooks.emit(ListenReleased(pool_id=self._lease.pool_id))

    async def _catch_up(self) -> None:
        """Check for jobs, pauses and migrations from before the connection listened."""
        self._on_jobs(None)
        self._on_pauses()
        await self._check_migration()

    async def _wait_for_notification(self, notifications: NotificationStream) -> None:
        notification = await notifications.wait_for_notification(self._compute_timeout())
        if notification is not None:
            self._handle_notification(notification)
        elif self._check_migration_at is None:
            await notifications.check(self._timings.connection_check_seconds)
        if self._check_migration_at is not None and time.monotonic() >= self._check_migration_at:
            await self._check_migration()

    async def _poll_during_flood(self) -> None:
        """Poll for jobs instead of listening."""
        until = time.monotonic() + self._timings.flood_poll_duration_seconds
        while time.monotonic() < until:
            self._on_jobs(None)
            await asyncio.sleep(self._timings.flood_poll_interval_seconds)

    def _compute_timeout(self) -> float:
        if self._check_migration_at is None:
            return self._timings.connection_check_seconds
        return max(0.0, self._check_migration_at - time.monotonic())

    def _handle_notification(self, notification: Notification) -> None:
        self._emit_notified(notification)
        if notification.channel == JOBS_CHANNEL:
            count = None if notification.skipped_count else parse_job_count(notification.payload)
            self._on_jobs(count)
        elif notification.channel == PAUSES_CHANNEL:
            self._on_pauses()
        elif notification.channel == MIGRATIONS_CHANNEL:
            self._check_migration_at = (
                self._migration_checked_at + self._timings.migration_check_interval_seconds
            )

    async def _check_migration(self) -> None:
        self._check_migration_at = None
        self._migration_checked_at = time.monotonic()
        await self._on_migration()

    def _emit_notified(self, notification: Notification) -> None:
        if self._hooks.has_listeners(ListenNotified):
            self._hooks.emit(
                ListenNotified(
                    pool_id=self._lease.pool_id,
                    channel=notification.channel,
                    payload=notification.payload,
                )
            )


def parse_job_count(payload: str) -> int:
    """Return the number of jobs in a notification, or 1 if the payload is invalid."""
    try:
        count = json.loads(payload)["count"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return 1
    return count if isinstance(count, int) and 0 <= count < 1_000_000 else 1
