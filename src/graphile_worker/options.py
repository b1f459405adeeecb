"""What can be set and could be written in a file; live things are arguments instead."""

import os
import typing
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Literal

from graphile_worker._support.renamed import rejects_renamed
from graphile_worker.errors import ConfigurationError

DEFAULT_SCHEMA = "graphile_worker"

# Bytes of payloads that a pool holds at once, and of one payload.
DEFAULT_MAX_BYTES = 64 * 1024 * 1024

# What a program sees of the worker's own environment: all of it, or what most programs need.
EnvironmentMode = Literal["inherit", "minimal"]


def default_schema() -> str:
    """The schema when none is given: `GRAPHILE_WORKER_SCHEMA`, else `graphile_worker`."""
    return os.environ.get("GRAPHILE_WORKER_SCHEMA") or DEFAULT_SCHEMA


@rejects_renamed("recovery.")
@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryOptions:
    """How soon the jobs of a worker that dies run elsewhere.

    A pool that was not heard of for `lease_duration` is dead: others take its jobs, and it gives
    them up itself a little before. It says that it lives every `heartbeat_interval`, a sixth of
    that unless given, and looks for dead ones every `rescue_interval`, a third.

    What it takes from a dead pool may run after `crash_retry_delay`; a job that was running at
    `max_crashes` of them is quarantined.
    """

    lease_duration: timedelta = timedelta(seconds=30)
    heartbeat_interval: timedelta | None = None
    rescue_interval: timedelta | None = None
    crash_retry_delay: timedelta = timedelta(0)
    max_crashes: int = 3

    def __post_init__(self) -> None:
        _check_counts(self, max_crashes=1)
        _check_durations(self)
        if self.effective_heartbeat_interval > self.lease_duration / 3:
            raise ConfigurationError(
                f"heartbeat_interval must be at most a third of lease_duration, got "
                f"{self.effective_heartbeat_interval} and {self.lease_duration}"
            )

    @property
    def effective_heartbeat_interval(self) -> timedelta:
        return (
            self.lease_duration / 6 if self.heartbeat_interval is None else self.heartbeat_interval
        )

    @property
    def effective_rescue_interval(self) -> timedelta:
        return self.lease_duration / 3 if self.rescue_interval is None else self.rescue_interval


@dataclass(frozen=True, kw_only=True, slots=True)
class RefetchDelayOptions:
    """How long to wait after a fetch that brought at most `threshold` jobs, to gather more.

    About `duration`; less if so many jobs are announced meanwhile: a random number up to
    `max_abort_threshold`, five times the size of the local queue unless given.
    """

    duration: timedelta = timedelta(milliseconds=100)
    threshold: int = 0
    max_abort_threshold: int | None = None

    def __post_init__(self) -> None:
        _check_counts(self, threshold=0)
        if self.max_abort_threshold is not None:
            _check_counts(self, max_abort_threshold=1)
        _check_durations(self)

    def resolve_max_abort_threshold(self, size: int) -> int:
        return 5 * size if self.max_abort_threshold is None else self.max_abort_threshold


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalQueueOptions:
    """Fetch jobs before a worker is free for them.

    As many as end here within a tenth of a second, none when jobs are slow. With `size` it is that
    many at once instead, as in the reference: they are held for up to `ttl`, and after a fetch that
    brought little the next one may wait for `refetch_delay`.

    Payloads of jobs that wait and of jobs that run have `max_bytes` together: one that does not fit
    is read when others have ended. One by itself may be larger.
    """

    size: int | None = None
    ttl: timedelta = timedelta(minutes=5)
    refetch_delay: RefetchDelayOptions | None = None
    max_bytes: int = DEFAULT_MAX_BYTES

    def __post_init__(self) -> None:
        _check_counts(self, max_bytes=1)
        if self.size is not None:
            _check_counts(self, size=1)
        elif self.refetch_delay is not None:
            raise ConfigurationError("refetch_delay is for a local queue with a size: give one")
        _check_durations(self)
        _check_nested(self, "refetch_delay", RefetchDelayOptions, or_none=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskProcessOptions:
    """The processes of tasks with `run_in="process"`; there are as many as run at once.

    One is replaced after `max_jobs`, or when it holds more than `max_memory` megabytes after a job.
    A task that wants more than `memory_limit` megabytes gets a MemoryError there and then.
    """

    max_jobs: int | None = None
    max_memory: int | None = None
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        # An interpreter with this library needs some of it itself.
        for name, least in (("max_jobs", 1), ("max_memory", 1), ("memory_limit", 128)):
            if getattr(self, name) is not None:
                _check_counts(self, **{name: least})


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutableOptions:
    """How the programs of a tasks folder are run.

    They see the worker's whole `environment`, as in the reference, or only a `minimal` one, without
    the address of the database and other secrets. After `timeout` a program is ended and its job
    fails; None waits for ever. So much of what it says is logged, `max_output_bytes` in all.
    """

    environment: EnvironmentMode = "inherit"
    timeout: timedelta | None = timedelta(hours=4)
    max_output_bytes: int = 1024 * 1024

    def __post_init__(self) -> None:
        if self.environment not in typing.get_args(EnvironmentMode):
            choices = ", ".join(typing.get_args(EnvironmentMode))
            raise ConfigurationError(
                f"environment must be one of {choices}, got {self.environment!r}"
            )
        _check_counts(self, max_output_bytes=0)
        _check_durations(self)


@rejects_renamed()
@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerOptions:
    """How a worker, and what migrates for it, is set up.

    `concurrency` jobs run at once. `max_pool_size` connections serve them: one listens, half of the
    rest is kept for taking and settling jobs, the others are lent to tasks: at least one to async
    ones and one to plain functions. One more is for heartbeats, and one is opened when a plain
    function adds jobs.

    After `cancel_after` a graceful stop asks running tasks to give up, at `shutdown_timeout` it
    cancels them and hands their jobs back, to run again after `interrupted_job_retry_delay`. None
    waits for ever.

    Jobs are fetched ahead as `local_queue` says; None: only when a worker is free. The ends of jobs
    are gathered for `complete_batch_delay` or `fail_batch_delay` and written together; zero: while
    those before are written; None: each by itself.

    A job whose payload has more than `max_payload_bytes` fails permanently, and the payload is not
    read.

    Without `recovery` nobody takes this worker's jobs before four hours if it dies, nor does it
    take those of others. A task that stands still for `warn_blocked_after` is named in the log with
    where it stands. While `max_runaway_threads` plain functions of one task run past their timeout,
    no more of its jobs are taken; None: there is no limit. `task_processes` says how tasks run that
    have processes of their own, and `executables` how the programs of a tasks folder do.
    `allow_unsafe_tasks` skips the check of who may change the tasks folder and the crontab.
    """

    schema: str = field(default_factory=default_schema)
    ext_schema: str | None = None
    concurrency: int = 1
    max_pool_size: int = 10
    poll_interval: timedelta = timedelta(seconds=2)
    listen: bool = True
    prepared_statements: bool = True
    use_local_time: bool = False
    cancel_after: timedelta | None = timedelta(seconds=5)
    shutdown_timeout: timedelta | None = timedelta(seconds=25)
    interrupted_job_retry_delay: timedelta | None = None
    min_reset_locked_interval: timedelta = timedelta(minutes=8)
    max_reset_locked_interval: timedelta = timedelta(minutes=10)
    local_queue: LocalQueueOptions | None = field(default_factory=LocalQueueOptions)
    max_payload_bytes: int = DEFAULT_MAX_BYTES
    complete_batch_delay: timedelta | None = timedelta(0)
    fail_batch_delay: timedelta | None = timedelta(0)
    recovery: RecoveryOptions | None = field(default_factory=RecoveryOptions)
    warn_blocked_after: timedelta | None = timedelta(seconds=5)
    max_runaway_threads: int | None = 3
    task_processes: TaskProcessOptions = field(default_factory=TaskProcessOptions)
    executables: ExecutableOptions = field(default_factory=ExecutableOptions)
    allow_unsafe_tasks: bool = False

    def __post_init__(self) -> None:
        if not self.schema:
            raise ConfigurationError("schema must not be empty")
        _check_counts(self, concurrency=1, max_pool_size=2, max_payload_bytes=1)
        if self.max_runaway_threads is not None:
            _check_counts(self, max_runaway_threads=1)
        _check_durations(self)
        _check_nested(self, "recovery", RecoveryOptions, or_none=True)
        _check_nested(self, "local_queue", LocalQueueOptions, or_none=True)
        _check_nested(self, "task_processes", TaskProcessOptions)
        _check_nested(self, "executables", ExecutableOptions)
        self._check_refetch_delay()
        if self.min_reset_locked_interval > self.max_reset_locked_interval:
            raise ConfigurationError(
                f"max_reset_locked_interval must be at least min_reset_locked_interval, got "
                f"{self.max_reset_locked_interval} and {self.min_reset_locked_interval}"
            )

    def _check_refetch_delay(self) -> None:
        delay = None if self.local_queue is None else self.local_queue.refetch_delay
        if delay is not None and delay.duration > self.poll_interval:
            raise ConfigurationError(
                f"refetch_delay.duration must be at most poll_interval, got {delay.duration} and "
                f"{self.poll_interval}"
            )

    @property
    def own_connections(self) -> int:
        """How many connections take and settle jobs; tasks never get one of them."""
        return max(1, (self.max_pool_size - 1) // 2)

    @property
    def task_connections(self) -> int:
        """How many connections tasks may hold at once."""
        return max(1, self.max_pool_size - 1 - self.own_connections)


# A poll of no time at all would be a loop that never rests; a lease of less than a second would end
# while its program only waits for its turn.
MIN_DURATIONS = {
    "poll_interval": timedelta(milliseconds=1),
    "min_reset_locked_interval": timedelta(milliseconds=1),
    "lease_duration": timedelta(seconds=1),
    "heartbeat_interval": timedelta(milliseconds=1),
    "rescue_interval": timedelta(milliseconds=1),
    "warn_blocked_after": timedelta(milliseconds=1),
    "timeout": timedelta(milliseconds=1),
}


def _check_nested(options: object, name: str, kind: type, *, or_none: bool = False) -> None:
    value = getattr(options, name)
    if not isinstance(value, kind) and not (or_none and value is None):
        wanted = f"{kind.__name__} or None" if or_none else kind.__name__
        raise ConfigurationError(f"{name} must be {wanted}, got {value!r}")


def _check_counts(options: object, **minimums: int) -> None:
    for name, smallest in minimums.items():
        value = getattr(options, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
            raise ConfigurationError(f"{name} must be an integer from {smallest}, got {value!r}")


def _check_durations(options: Any) -> None:
    for each in fields(options):
        if "timedelta" not in str(each.type):
            continue
        value = getattr(options, each.name)
        if value is None and "None" in str(each.type):
            continue
        _check_duration(each.name, value, minimum=MIN_DURATIONS.get(each.name, timedelta(0)))


def _check_duration(name: str, value: object, *, minimum: timedelta) -> None:
    if not isinstance(value, timedelta):
        hint = f": write timedelta(milliseconds={value})" if isinstance(value, int | float) else ""
        raise ConfigurationError(f"{name} must be a timedelta, got {value!r}{hint}")
    if value < minimum:
        raise ConfigurationError(f"{name} must be at least {minimum}, got {value}")
