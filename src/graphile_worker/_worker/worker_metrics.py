"""WorkerMetrics: the counters of rare events, and the gauges, of one worker."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from graphile_worker._db.database import ConnectionCounts
from graphile_worker._lease.lease import Lease
from graphile_worker._metrics import definitions
from graphile_worker._metrics.definitions import AddMode, ConnectionState
from graphile_worker._metrics.recorder import Recorder, build_gauges
from graphile_worker._metrics.values import Families
from graphile_worker._support.lazy_dataclass import LazyDataclass
from graphile_worker._worker.pool import WorkerPool
from graphile_worker.events import (
    CronScheduled,
    Event,
    HeartbeatFailed,
    JobRecovered,
    LeaseExpired,
    LeaseLost,
    ListenFailed,
    ListenReleased,
    ListenStarted,
    PoolEvent,
)
from graphile_worker.hooks import Hooks

LAG_CHECK_INTERVAL_SECONDS = 0.25


class WorkerMetrics:
    """Listens to the events of a worker, and reads its state.

    Args:
        recorder: Where to count.
        hooks: Hooks of the worker.
        lease: Lease of the worker, whose pool ids identify its events.
        info: Labels of the metric `info`.
        count_connections: Returns the connections for tasks, or None if they are not known.
        listens: Whether the worker uses notifications. If not, it reports nothing about them.
    """

    def __init__(
        self,
        recorder: Recorder,
        hooks: Hooks,
        lease: Lease,
        *,
        info: tuple[str, ...],
        count_connections: Callable[[], ConnectionCounts | None],
        listens: bool,
    ) -> None:
        self.pool: WorkerPool | None = None
        self._recorder = recorder
        self._hooks = hooks
        self._lease = lease
        self._info = info
        self._count_connections = count_connections
        self._listens = listens
        self._is_listening = False

    @contextmanager
    def attach(self) -> Iterator[None]:
        """Count events and report gauges inside the block."""
        listeners: dict[type[Event], Callable[[Any], None]] = {
            ListenStarted: self._on_listen_started,
            ListenFailed: self._on_listen_failed,
            ListenReleased: self._on_listen_released,
            HeartbeatFailed: self._count(definitions.HEARTBEAT_FAILURES),
            LeaseExpired: self._count(definitions.LEASES_EXPIRED),
            LeaseLost: self._count(definitions.LEASES_LOST),
            JobRecovered: self._on_recovered,
        }
        for event, listener in listeners.items():
            self._hooks.on(event)(listener)
        # A counter that starts at 0 shows its first increase.
        for metric in (definitions.LISTEN_RECONNECTS, definitions.WRITE_RETRIES):
            self._recorder.add(metric, amount=0)
        # Equal to that of another worker with these hooks, so that each schedule counts once.
        self._hooks.on(CronScheduled)(CronCounter(self._recorder))
        self._recorder.add_gauges(self.collect_gauges)
        try:
            yield
        finally:
            self._recorder.remove_gauges(self.collect_gauges)
            for event, listener in listeners.items():
                self._hooks.off(event, listener)

    async def measure_lag(self) -> None:
        """Record how late the event loop wakes up this task."""
        while True:
            expected_at = time.monotonic() + LAG_CHECK_INTERVAL_SECONDS
            await asyncio.sleep(LAG_CHECK_INTERVAL_SECONDS)
            self._recorder.record_lag(max(0.0, time.monotonic() - expected_at))

    def collect_gauges(self) -> Families:
        """Return the current values. Any thread may call this."""
        families: Families = {definitions.INFO: {self._info: 1}}
        families |= build_gauges({definitions.HEARTBEAT_AGE: self._lease.seconds_since_heartbeat})
        if self._listens:
            # Without the option, a 0 would look like a lost connection.
            families |= build_gauges({definitions.LISTEN_CONNECTED: int(self._is_listening)})
        if self.pool is not None:
            families |= build_gauges(
                {
                    definitions.JOBS_RUNNING: self.pool.running_count,
                    definitions.JOBS_PREFETCHED: self.pool.buffered_count,
                    definitions.CONCURRENCY: self.pool.concurrency,
                    definitions.DATABASE_REACHABLE: int(self.pool.is_database_reachable),
                }
            )
        if (counts := self._count_connections()) is not None:
            families[definitions.CONNECTIONS] = {
                (ConnectionState.USED,): counts.used,
                (ConnectionState.IDLE,): counts.idle,
                (ConnectionState.WAITING,): counts.waiting,
            }
        return families

    def _count(self, metric: definitions.Metric) -> Callable[[PoolEvent], None]:
        def count(event: PoolEvent) -> None:
            if event.pool_id in self._lease.pool_ids:
                self._recorder.add(metric)

        self._recorder.add(metric, amount=0)
        return count

    def _on_listen_started(self, event: ListenStarted) -> None:
        if event.pool_id in self._lease.pool_ids:
            self._is_listening = True

    def _on_listen_failed(self, event: ListenFailed) -> None:
        if event.pool_id in self._lease.pool_ids:
            if self._is_listening:
                self._recorder.add(definitions.LISTEN_RECONNECTS)
            self._is_listening = False

    def _on_listen_released(self, event: ListenReleased) -> None:
        if event.pool_id in self._lease.pool_ids:
            self._is_listening = False

    def _on_recovered(self, event: JobRecovered) -> None:
        if event.pool_id in self._lease.pool_ids:
            label = self._recorder.get_task_label(event.job.task_identifier)
            self._recorder.add(definitions.JOBS_RECOVERED, (label,))


class CronCounter(LazyDataclass):
    """Counts the jobs that the scheduler added. Equals another one of the same recorder."""

    recorder: Recorder

    def __call__(self, event: CronScheduled) -> None:
        for job in event.jobs:
            label = self.recorder.get_identifier_label(job.identifier)
            self.recorder.add(definitions.CRON_ADDED, (label,))
            self.recorder.set(definitions.CRON_LAST, (label,), event.timestamp.timestamp())
        self.recorder.record_added((job.spec.identifier for job in event.jobs), AddMode.CRON)
