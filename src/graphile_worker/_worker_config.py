"""WorkerConfig: the configuration of a worker, and the checks before it starts."""

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field
from datetime import timedelta
from typing import Any

from graphile_worker import sync
from graphile_worker._db.conninfo import find_plaintext_risk
from graphile_worker._db.database import run_plan
from graphile_worker._db.external_connections import ExternalConnectionDatabase
from graphile_worker._db.psycopg import PsycopgDatabase, get_psycopg_implementation
from graphile_worker._db.worker_connections import ConnectionTimings, WorkerConnections
from graphile_worker._lease.service import LeaseTimings
from graphile_worker._sql.plans.history import find_longest_keep
from graphile_worker._sql.plans.migration import plan_check_schema, plan_migrate
from graphile_worker._sql.queries.history import get_history, has_history
from graphile_worker._sql.queries.limits import check_limits as check_limit_access
from graphile_worker._support.clock import Clock, SystemClock
from graphile_worker._support.durations import format_duration
from graphile_worker._support.lazy_dataclass import LazyKeywordDataclass
from graphile_worker._support.logs import Logger
from graphile_worker._worker.claimer import ClaimTimings, ForbiddenFlags
from graphile_worker._worker.completer import CompletionTimings
from graphile_worker._worker.completion_batcher import MAX_PENDING
from graphile_worker._worker.limit_groups import LimitTimings
from graphile_worker._worker.listener import ListenTimings
from graphile_worker._worker.pauses import PauseTimings
from graphile_worker._worker.pool import ShutdownTimings
from graphile_worker._worker.process_main import reject_in_task_process
from graphile_worker._worker.run_job import Executors
from graphile_worker._worker.shared_concurrency import SharedConcurrency
from graphile_worker._worker.sources.prefetch import PrefetchTimings
from graphile_worker.crontab import ParsedCronItem
from graphile_worker.errors import ConfigurationError, SchemaError
from graphile_worker.events import Migrating
from graphile_worker.hooks import NOT_MIGRATED_MESSAGE, Hooks
from graphile_worker.limits import ConcurrencyLimit, Limit
from graphile_worker.options import WorkerOptions
from graphile_worker.results import Retention
from graphile_worker.shards import Shards
from graphile_worker.tasks import Task, TaskRouter, find_limits, find_retentions
from graphile_worker.tasks.importing import locate_task

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]


class WorkerTimings(LazyKeywordDataclass):
    """Internal intervals and limits, and the clock of this machine: only tests replace them."""

    connections: ConnectionTimings = ConnectionTimings()
    lease: LeaseTimings = LeaseTimings()
    claim: ClaimTimings = ClaimTimings()
    prefetch: PrefetchTimings = PrefetchTimings()
    listen: ListenTimings = ListenTimings()
    pauses: PauseTimings = PauseTimings()
    limits: LimitTimings = LimitTimings()
    completion: CompletionTimings = CompletionTimings()
    max_pending_completions: int = MAX_PENDING
    shutdown: ShutdownTimings = ShutdownTimings()
    listener_drain_timeout: timedelta = timedelta(seconds=3)
    """Listeners that take longer are cancelled and named."""
    lifespan_exit_seconds: float = 1.0
    """Time for the exit of a lifespan while jobs wait to be released."""
    clock: Clock = field(default_factory=SystemClock)


class WorkerShard(LazyKeywordDataclass):
    """A shard, and what its worker shares with those of the other shards."""

    name: str
    shards: Shards
    sync_shards: sync.Shards
    limit: SharedConcurrency
    executors: Executors


class WorkerConfig(LazyKeywordDataclass):
    """The configuration of a worker, besides its database."""

    options: WorkerOptions
    tasks: Mapping[str, Task[..., Any]]
    known_tasks: Collection[str] = ()
    """The tasks of this worker, and those that its options leave out."""
    definitions: TaskRouter[Any] | None = None
    """The app. Its task options apply to jobs that are added by name."""
    cron_items: Callable[[], Sequence[ParsedCronItem]] | None
    hooks: Hooks
    logger: Logger
    lifespan: Lifespan
    forbidden_flags: ForbiddenFlags
    migrate: bool
    task_process_module: str | None = None
    """Module that task processes import first."""
    timings: WorkerTimings = WorkerTimings()
    shard: WorkerShard | None = None
    """The shard of this worker, if its process runs one for each of several shards."""

    @property
    def retentions(self) -> dict[str, Retention]:
        """Return what tasks keep of ended jobs, by identifier. Most tasks keep nothing."""
        return find_retentions(self.tasks, self.definitions)

    @property
    def client_options(self) -> dict[str, Any]:
        """Return the arguments of the clients of this worker, besides their database."""
        options, definitions = self.options, self.definitions
        found: dict[str, Any] = {
            "schema": options.schema,
            "ext_schema": options.ext_schema,
            "use_local_time": options.use_local_time,
            "hooks": self.hooks,
            "notify": options.notify,
            "notify_interval": options.notify_interval,
        }
        if definitions is not None:
            found["tasks"] = definitions
            if definitions._max_payload_bytes is not None:
                found["max_payload_bytes"] = definitions._max_payload_bytes
        return found

    def has_definition(self, identifier: str) -> bool:
        """Return whether the app has a task, which this worker may leave out."""
        return self.definitions is not None and self.definitions.find(identifier) is not None

    @property
    def limits(self) -> dict[str, tuple[Limit, ...]]:
        """Return the limits of tasks that have any, by identifier."""
        return find_limits(self.tasks)

    @property
    def clock(self) -> Clock | None:
        """Return the clock that decides which jobs are ready. None for that of the database."""
        return self.timings.clock if self.options.use_local_time else None


def check_config(config: WorkerConfig) -> None:
    """Raise ConfigurationError for an invalid configuration, and warn about probable mistakes."""
    reject_in_task_process()
    if not config.tasks:
        raise ConfigurationError("no tasks configured. Pass an app, a mapping or a tasks folder.")
    for task in config.tasks.values():
        if task.runs_in_process:
            locate_task(task)
            if sys.platform == "win32":
                raise ConfigurationError(
                    f'task {task.identifier!r}: run_in="process" does not work on Windows'
                )
    options, warn = config.options, config.logger.warning
    for task_name, limits in config.limits.items():
        if options.recovery is None and any(isinstance(each, ConcurrencyLimit) for each in limits):
            raise ConfigurationError(
                f"task {task_name!r} has a concurrency limit, which needs recovery: heartbeats "
                "free the slots of workers that die. Remove recovery=None or the limit."
            )
    for item in config.cron_items() if config.cron_items is not None else ():
        # Another deployment of the app may run a task that this one leaves out.
        if item.task not in config.known_tasks and not config.has_definition(item.task):
            warn(
                "cron item %r adds jobs of task %r, which this worker does not run",
                item.identifier,
                item.task,
            )
    if options.max_pool_size < options.concurrency:
        warn(
            "max_pool_size=%s is less than concurrency=%s, tasks may wait for a connection",
            options.max_pool_size,
            options.concurrency,
        )
    size = None if options.local_queue is None else options.local_queue.size
    if size is not None and size < options.concurrency:
        warn(
            "local_queue.size=%s is less than concurrency=%s, raise it to at least concurrency",
            size,
            options.concurrency,
        )
    if get_psycopg_implementation() == "python":
        warn("psycopg runs in pure Python (several times slower), install psycopg[binary]")


async def prepare_schema(config: WorkerConfig, databases: WorkerConnections) -> None:
    """Migrate the schema, or check that it exists."""
    if isinstance(databases.own, ExternalConnectionDatabase):
        # The caller prepared the schema before its transaction.
        return
    database = databases.tasks
    schemas = database.schemas
    if not config.migrate:
        await run_plan(database, plan_check_schema(schemas))
        return
    async with config.hooks.around_async(Migrating(schema=schemas.shared)):
        # Not on the worker's own connections, whose queries have a short timeout.
        await run_plan(database, plan_migrate(schemas, config.retentions.values()))
        return
    # Only reached if a hook suppressed the error.
    raise ConfigurationError(NOT_MIGRATED_MESSAGE)


async def check_history(config: WorkerConfig, databases: WorkerConnections) -> None:
    """Raise SchemaError if tasks keep outcomes and this role cannot store them."""
    retentions, schemas = config.retentions, databases.own.schemas
    if not retentions:
        return
    if not await databases.own.run(has_history(schemas)):
        raise SchemaError(
            f"task {min(retentions)!r} keeps outcomes, and schema {schemas.companion!r} has no "
            "tables for them that this role may write to. Run `graphile-worker migrate` as the "
            "owner, or grant the privileges."
        )
    wanted = find_longest_keep(retentions.values())
    ring = None if wanted is None else await databases.own.run(get_history())
    if ring is not None and wanted is not None and ring.effective_keep < wanted:
        config.logger.warning(
            "schema %r keeps outcomes for %s, and tasks want %s: "
            "run `graphile-worker history set --keep` as the owner",
            schemas.companion,
            format_duration(ring.effective_keep),
            format_duration(wanted),
        )


async def check_limits(config: WorkerConfig, databases: WorkerConnections) -> None:
    """Raise if tasks have limits that this worker cannot keep.

    Raises:
        ConfigurationError: The worker runs on a connection of the caller.
        SchemaError: This role cannot use the tables of limits.
    """
    limits, schemas = config.limits, databases.own.schemas
    if not limits:
        return
    if isinstance(databases.own, ExternalConnectionDatabase):
        raise ConfigurationError(
            f"task {min(limits)!r} has a limit, which other workers could not see from your "
            "transaction. Run it with run_once, or test it with the fixture gw."
        )
    access = await databases.own.run(check_limit_access(schemas))
    if not access.can_write:
        raise SchemaError(
            f"task {min(limits)!r} has a limit, and schema {schemas.companion!r} has no tables for "
            "limits that this role may write to. Run `graphile-worker migrate` as the owner, or "
            "grant the privileges."
        )


async def warn_if_unencrypted(config: WorkerConfig, databases: WorkerConnections) -> None:
    """Warn if the connection may fall back to plain text."""
    # The caller configures its own pool or connection.
    if not isinstance(databases.tasks, PsycopgDatabase):
        return
    async with databases.tasks.connection() as connection:
        risk = find_plaintext_risk(connection.raw.info)
    if risk is not None:
        config.logger.warning(
            "connection may fall back to plain text (%s): require TLS with sslmode=verify-full",
            risk,
        )
