"""Other internal timings for a worker in the process of a test."""

from dataclasses import replace
from typing import Any

from graphile_worker import Runner
from graphile_worker._lease.heartbeat import HeartbeatTimings
from graphile_worker._lease.service import LeaseTimings
from graphile_worker._worker_config import WorkerTimings

DEFAULT_TIMINGS = WorkerTimings()


def set_timings(runner: Runner, timings: WorkerTimings) -> Runner:
    """Replace the timings of a worker that has not started, and return it."""
    runner._config = replace(runner._config, timings=timings)
    return runner


def make_heartbeat_timings(**values: Any) -> WorkerTimings:
    """The timings of a worker whose heartbeat has these."""
    return WorkerTimings(lease=LeaseTimings(heartbeat=HeartbeatTimings(**values)))
