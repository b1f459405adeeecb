"""Options of a worker: everything that a config file could set.

Objects of your program, such as hooks or a logger, are arguments of `run` instead.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from graphile_worker._support.option_fields import HelpGroup, check_fields, option
from graphile_worker._support.renamed import rejects_renamed
from graphile_worker.errors import ConfigurationError

DEFAULT_SCHEMA = "graphile_worker"

# For one payload, and for all payloads that a worker has in memory.
DEFAULT_MAX_BYTES = 64 * 1024 * 1024

# An interval of zero would be a busy loop.
MIN_INTERVAL = timedelta(milliseconds=1)

# The environment variables that an executable gets: all of the worker's, or a few common ones.
EnvironmentMode = Literal["inherit", "minimal"]

# When workers are notified of an added job: at its commit, soon after it with other jobs, or never.
NotifyMode = Literal["on_commit", "coalesced", "never"]
DEFAULT_NOTIFY_INTERVAL = timedelta(milliseconds=200)


def default_schema() -> str:
    """Return the value of `GRAPHILE_WORKER_SCHEMA`, or else `graphile_worker`."""
    return os.environ.get("GRAPHILE_WORKER_SCHEMA") or DEFAULT_SCHEMA


@rejects_renamed("recovery.")
@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryOptions:
    """Set how soon other workers take over the jobs of a dead worker.

    Raises:
        ConfigurationError: An option has an invalid value.
    """

    lease_duration: timedelta = option(
        timedelta(seconds=30),
        help="Lease duration of this worker's jobs",
        detail="Other workers take over its jobs if it sends no heartbeat for this time.",
        # A shorter lease could expire while its process only waits for CPU time.
        minimum=timedelta(seconds=1),
        flags=("--lease-duration",),
    )
    heartbeat_interval: timedelta | None = option(
        None,
        help="Heartbeat interval",
        default_text="lease duration / 6",
        detail="At most a third of the lease duration.",
        minimum=MIN_INTERVAL,
        flags=("--heartbeat-interval",),
    )
    rescue_interval: timedelta | None = option(
        None,
        help="Dead worker check interval",
        default_text="lease duration / 3",
        minimum=MIN_INTERVAL,
        flags=("--rescue-interval",),
    )
    crash_retry_delay: timedelta = option(
        timedelta(0),
        help="Retry delay of jobs of dead workers",
        flags=("--crash-retry-delay",),
    )
    max_crashes: int = option(
        3,
        help="Worker crashes before a job is quarantined",
        detail="Counts the worker crashes during which the job was running.",
        minimum=1,
        flags=("--max-crashes",),
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.effective_heartbeat_interval > self.lease_duration / 3:
            raise ConfigurationError(
                f"heartbeat_interval must be at most a third of lease_duration, got "
                f"{self.effective_heartbeat_interval} and {self.lease_duration}"
            )

    @property
    def effective_heartbeat_interval(self) -> timedelta:
        """Return the interval that applies."""
        return (
            self.lease_duration / 6 if self.heartbeat_interval is None else self.heartbeat_interval
        )

    @property
    def effective_rescue_interval(self) -> timedelta:
        """Return the interval that applies."""
        return self.lease_duration / 3 if self.rescue_interval is None else self.rescue_interval


@dataclass(frozen=True, kw_only=True, slots=True)
class RefetchDelayOptions:
    """Wait after a small fetch until more jobs are due.

    Raises:
        ConfigurationError: An option has an invalid value.
    """

    duration: timedelta = option(
        timedelta(milliseconds=100),
        help="Average delay before the next fetch",
        detail="At most `poll_interval`.",
    )
    threshold: int = option(
        0,
        help="Largest fetch that delays the next fetch",
        detail="Counted in jobs.",
        minimum=0,
    )
    max_abort_threshold: int | None = option(
        None,
        help="New jobs that end the delay early",
        default_text="size * 5",
        detail="The delay ends early after a random number of announced jobs, up to this one.",
        minimum=1,
    )

    def __post_init__(self) -> None:
        check_fields(self)

    def resolve_max_abort_threshold(self, size: int) -> int:
        """Return the threshold that applies to a local queue of this size."""
        return 5 * size if self.max_abort_threshold is None else self.max_abort_threshold


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalQueueOptions:
    """Fetch jobs before a worker is free to run them.

    Raises:
        ConfigurationError: An option has an invalid value.
    """

    size: int | None = option(
        None,
        help="Number of jobs to fetch ahead",
        default_text="100 ms of work",
        detail="A number applies however long the jobs take. Use at least `concurrency`.",
        minimum=1,
    )
    ttl: timedelta = option(
        timedelta(minutes=5),
        help="Release prefetched jobs after this long",
        detail="Needs a `size`.",
    )
    refetch_delay: RefetchDelayOptions | None = option(
        None, help="Delay the next fetch after a small fetch", detail="Needs a `size`."
    )
    max_bytes: int = option(
        DEFAULT_MAX_BYTES,
        help="Limit of payload bytes in memory",
        detail="Counts the payloads of waiting and running jobs.",
        see="reference/options.md#large-payloads",
        minimum=1,
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.size is None and self.refetch_delay is not None:
            raise ConfigurationError("refetch_delay needs a local queue with a size. Set size too.")


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskProcessOptions:
    """Limit the processes that run tasks with `run_in="process"`.

    Raises:
        ConfigurationError: An option has an invalid value.
    """

    max_jobs: int | None = option(
        None, help="Jobs before a task process is replaced", default_text="no limit", minimum=1
    )
    max_memory: int | None = option(
        None,
        help="MB at which a task process is replaced",
        default_text="no limit",
        detail="The worker checks its memory after each job.",
        minimum=1,
    )
    memory_limit: int | None = option(
        None,
        help="Memory limit of a task process, in MB",
        default_text="no limit",
        detail="A task that allocates more gets a `MemoryError`.",
        # The interpreter with this package needs a part of it.
        minimum=128,
    )

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutableOptions:
    """Set how the programs of a tasks folder run.

    Raises:
        ConfigurationError: An option has an invalid value.
    """

    environment: EnvironmentMode = option(
        "inherit",
        help="Environment variables of executables",
        detail="`minimal` passes the variables that most programs need, without secrets such as "
        "`DATABASE_URL`.",
    )
    timeout: timedelta | None = option(
        timedelta(hours=4),
        help="Timeout of executables",
        detail="The job of a program that takes longer fails.",
        none_means="no timeout",
        minimum=MIN_INTERVAL,
    )
    max_output_bytes: int = option(
        1024 * 1024, help="Bytes of output to log per executable", minimum=0
    )

    def __post_init__(self) -> None:
        check_fields(self)


@rejects_renamed()
@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerOptions:
    """Set up a worker, and the migration that it runs.

    The page docs/reference/options.md describes each option, `graphile-worker --help` lists them.

    Raises:
        ConfigurationError: An option has an invalid value.
    """

    schema: str = option(
        DEFAULT_SCHEMA,
        factory=default_schema,
        help="Database schema of the queue",
        detail="`GRAPHILE_WORKER_SCHEMA` changes the default.",
        flags=("-s", "--schema"),
        help_group=HelpGroup.COMMON,
    )
    ext_schema: str | None = option(
        None,
        help="Schema of Python-only tables",
        default_text="schema name + _ext",
        detail="Contains the tables that only Python workers use.",
    )
    only_tasks: Sequence[str] | None = option(
        None,
        help="Run only these tasks",
        default_text="all tasks",
        detail="Names, or patterns, for example `mail_*`.",
        see="operations/running-workers.md#several-deployments-of-one-app",
        flags=("--only",),
        metavar="TASKS",
        help_group=HelpGroup.COMMON,
    )
    except_tasks: Sequence[str] = option(
        (),
        help="Run all tasks except these",
        default_text="none",
        detail="Names, or patterns, for example `mail_*`.",
        see="operations/running-workers.md#several-deployments-of-one-app",
        flags=("--except",),
        metavar="TASKS",
        help_group=HelpGroup.COMMON,
    )
    forbidden_flags: Sequence[str] = option(
        (),
        help="Skip jobs with any of these flags",
        default_text="none",
        see="guides/rate-limits-and-flags.md#forbidden-flags",
        metavar="FLAGS",
        help_group=HelpGroup.COMMON,
    )
    concurrency: int = option(
        1,
        help="Number of jobs to run at once",
        see="operations/running-workers.md#concurrency",
        minimum=1,
        flags=("-j", "--jobs"),
        help_group=HelpGroup.CONCURRENCY,
    )
    max_pool_size: int = option(
        10,
        help="Maximum number of database connections",
        see="operations/running-workers.md#database-connections",
        # One listens, and one claims and completes jobs.
        minimum=2,
        flags=("-m", "--max-pool-size"),
        help_group=HelpGroup.CONCURRENCY,
    )
    poll_interval: timedelta = option(
        timedelta(seconds=2), help="Interval between polls for jobs", minimum=MIN_INTERVAL
    )
    listen: bool = option(
        True,
        help="Use LISTEN/NOTIFY to start new jobs at once",
        detail="Off: poll only, for example behind PgBouncer.",
        see="operations/running-workers.md#polling-and-notifications",
    )
    notify: NotifyMode = option(
        "on_commit",
        help="When to notify workers of added jobs",
        detail="`coalesced` and `never` keep NOTIFY out of the commits that add jobs.",
        see="operations/scaling.md#quiet-enqueueing",
    )
    notify_interval: timedelta = option(
        DEFAULT_NOTIFY_INTERVAL,
        help="Shortest time between notifications",
        minimum=MIN_INTERVAL,
    )
    prepared_statements: bool = option(
        True,
        help="Use prepared statements",
        detail="Turn them off behind PgBouncer before 1.21 in transaction mode.",
    )
    use_local_time: bool = option(
        False,
        help="Use the local clock to decide what is due",
        detail="By default the clock of the database decides which jobs are due.",
    )
    cancel_after: timedelta | None = option(
        timedelta(seconds=5),
        help="On shutdown, ask jobs to stop after this long",
        none_means="never",
        see="operations/graceful-shutdown.md",
        help_group=HelpGroup.SHUTDOWN,
    )
    shutdown_timeout: timedelta | None = option(
        timedelta(seconds=25),
        help="On shutdown, cancel jobs after this long",
        detail="Their jobs are released.",
        none_means="wait until they end",
        see="operations/graceful-shutdown.md",
        help_group=HelpGroup.SHUTDOWN,
    )
    interrupted_job_retry_delay: timedelta | None = option(
        None,
        help="Delay of jobs that a shutdown releases",
        default_text="no delay",
        detail="Applies also to the jobs of a worker whose lease expires.",
        help_group=HelpGroup.SHUTDOWN,
    )
    local_queue: LocalQueueOptions | None = option(
        LocalQueueOptions(),
        help="Fetch jobs before a slot is free",
        none_means="fetch a job when a worker is free for it",
        see="reference/options.md#localqueueoptions",
    )
    max_payload_bytes: int = option(
        DEFAULT_MAX_BYTES,
        help="Maximum payload size of a job, in bytes",
        detail="A job with a larger one fails permanently, and the worker does not read it.",
        see="reference/options.md#large-payloads",
        minimum=1,
    )
    complete_batch_delay: timedelta | None = option(
        timedelta(0),
        help="Time to batch completed jobs into one write",
        detail="Zero: collect while the previous write runs.",
        none_means="write each job separately",
        see="reference/options.md#batches",
    )
    fail_batch_delay: timedelta | None = option(
        timedelta(0),
        help="Time to batch failed attempts into one write",
        detail="Zero: collect while the previous write runs.",
        none_means="write each attempt separately",
        see="reference/options.md#batches",
    )
    recovery: RecoveryOptions | None = option(
        RecoveryOptions(),
        help="Take over jobs of dead workers",
        none_means="jobs of a dead worker are released after four hours",
        see="operations/crash-recovery.md",
        help_group=HelpGroup.RECOVERY,
    )
    min_reset_locked_interval: timedelta = option(
        timedelta(minutes=8),
        help="Shortest time between stale lock checks",
        detail="A check releases locks older than four hours. It runs at random intervals.",
        minimum=MIN_INTERVAL,
        help_group=HelpGroup.RECOVERY,
    )
    max_reset_locked_interval: timedelta = option(
        timedelta(minutes=10),
        help="Longest time between stale lock checks",
        help_group=HelpGroup.RECOVERY,
    )
    warn_blocked_after: timedelta | None = option(
        timedelta(seconds=5),
        help="Warn about tasks that block longer than this",
        none_means="never",
        see="operations/crash-recovery.md#code-that-blocks",
        minimum=MIN_INTERVAL,
        help_group=HelpGroup.RECOVERY,
    )
    max_runaway_threads: int | None = option(
        3,
        help="Timed-out threads that pause a task",
        detail="While this many plain functions of a task run past their timeout, the worker "
        "claims no more jobs of it.",
        none_means="no limit",
        see="guides/retries-and-timeouts.md#timeouts",
        minimum=1,
        help_group=HelpGroup.RECOVERY,
    )
    task_processes: TaskProcessOptions = option(
        TaskProcessOptions(),
        help="Limits of task processes",
        see="reference/options.md#taskprocessoptions",
    )
    executables: ExecutableOptions = option(
        ExecutableOptions(),
        help="Limits of executables",
        see="reference/options.md#executableoptions",
    )
    allow_unsafe_tasks: bool = option(
        False,
        help="Skip the owner and permission checks",
        detail="Applies to the tasks folder, the crontab and the config file.",
        see="guides/tasks-folder.md#trusted-files",
    )

    def __post_init__(self) -> None:
        if not self.schema:
            raise ConfigurationError("schema must not be empty")
        check_fields(self)
        for name in ("only_tasks", "except_tasks", "forbidden_flags"):
            if (names := getattr(self, name)) is not None:
                object.__setattr__(self, name, tuple(names))
        if self.only_tasks is not None and not self.only_tasks:
            raise ConfigurationError("only_tasks must name at least one task")
        delay = self.local_queue.refetch_delay if self.local_queue else None
        if delay is not None and delay.duration > self.poll_interval:
            raise ConfigurationError(
                f"refetch_delay.duration must be at most poll_interval, got {delay.duration} and "
                f"{self.poll_interval}"
            )
        if self.min_reset_locked_interval > self.max_reset_locked_interval:
            raise ConfigurationError(
                f"max_reset_locked_interval must be at least min_reset_locked_interval, got "
                f"{self.max_reset_locked_interval} and {self.min_reset_locked_interval}"
            )

    @property
    def own_connections(self) -> int:
        """Return the number of connections that claim and complete jobs, never lent to tasks."""
        return max(1, (self.max_pool_size - 1) // 2)

    @property
    def task_connections(self) -> int:
        """Return the number of connections that tasks may use at once."""
        return max(1, self.max_pool_size - 1 - self.own_connections)
