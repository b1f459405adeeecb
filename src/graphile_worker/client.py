"""Add and administer jobs from async code."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from graphile_worker._db.database import Database, run_plan, run_plan_on
from graphile_worker._db.external_connections import adapt_connection
from graphile_worker._db.external_pools import open_database
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.add import plan_add_job, plan_add_jobs
from graphile_worker._sql.plans.admin import (
    plan_complete_jobs,
    plan_force_unlock_workers,
    plan_get_job,
    plan_get_job_by_key,
    plan_list_known_crontabs,
    plan_list_locked_jobs,
    plan_permanently_fail_jobs,
    plan_recover_jobs,
    plan_remove_job,
    plan_reschedule_jobs,
)
from graphile_worker._sql.plans.cleanup import CleanupTask, plan_cleanup
from graphile_worker._sql.plans.migration import plan_check_schema, plan_migrate
from graphile_worker._sql.plans.tuning import Tuning, plan_apply_tuning, plan_get_tuning
from graphile_worker._sql.queries.cron import KnownCrontab
from graphile_worker._sql.query import Plan
from graphile_worker._support.clock import Clock, SystemClock
from graphile_worker.errors import GraphileWorkerError
from graphile_worker.events import AddingJobs, Migrating
from graphile_worker.hooks import NO_JOB_ADDED_MESSAGE, NOT_MIGRATED_MESSAGE, Hooks
from graphile_worker.jobs import Job, JobKeyMode, JobKeyModeName, JobSpec, RunAt
from graphile_worker.options import WorkerOptions, default_schema
from graphile_worker.tasks import TaskRouter

T = TypeVar("T")


class Client:
    """Adds jobs to a queue and looks after them.

    `database` is a connection string (default: `DATABASE_URL`, then `PGDATABASE`), or a pool
    or engine of yours: a psycopg AsyncConnectionPool, an asyncpg Pool or a SQLAlchemy AsyncEngine,
    which is never closed here. Build one client and share it.

    With `conn=` a call joins the transaction of a connection of yours: psycopg, asyncpg or
    SQLAlchemy. With `tasks=`, an app or a router, jobs of its tasks get the options that they are
    defined with, and their payloads are checked.
    """

    def __init__(
        self,
        database: object = None,
        *,
        schema: str | None = None,
        ext_schema: str | None = None,
        use_local_time: bool = False,
        max_payload_bytes: int | None = None,
        prepared_statements: bool = True,
        hooks: Hooks | None = None,
        clock: Clock | None = None,
        tasks: TaskRouter[Any] | None = None,
    ) -> None:
        self._schemas = Schemas.from_names(schema or default_schema(), ext_schema)
        self._db: Database = open_database(
            database, self._schemas, prepared_statements=prepared_statements
        )
        self._use_local_time = use_local_time
        self._max_payload_bytes = max_payload_bytes
        self._hooks = hooks or Hooks()
        self._clock = clock or SystemClock()
        self._tasks = tasks

    async def add_job(
        self,
        identifier: str,
        payload: Any = None,
        *,
        queue_name: str | None = None,
        run_at: RunAt | None = None,
        max_attempts: int | None = None,
        priority: int | None = None,
        job_key: str | None = None,
        job_key_mode: JobKeyMode | JobKeyModeName | None = None,
        flags: Collection[str] | None = None,
        conn: object = None,
    ) -> Job:
        """Add one job; the job that was added, or updated where its key was known."""
        spec = JobSpec(
            identifier,
            payload,
            queue_name=queue_name,
            run_at=run_at,
            max_attempts=max_attempts,
            priority=priority,
            job_key=job_key,
            job_key_mode=job_key_mode,
            flags=flags,
        )
        return await self.add_spec(self._apply_task_options(spec), conn=conn)

    async def add_spec(self, spec: JobSpec, *, conn: object = None) -> Job:
        """Add the one job that a spec describes."""
        adding = AddingJobs(specs=[self._set_run_at(spec)])
        with self._hooks.around_sync(adding):
            plan = plan_add_job(adding.specs[0], self._schemas, max_bytes=self._max_payload_bytes)
            job = await self._run_plan(plan, conn)
            adding.jobs.append(job)
            return job
        raise GraphileWorkerError(NO_JOB_ADDED_MESSAGE)

    async def add_jobs(self, specs: Iterable[JobSpec], *, conn: object = None) -> list[Job]:
        """Add any number of jobs in one round trip; the jobs in the order of their specs."""
        adding = AddingJobs(
            specs=[self._set_run_at(self._apply_task_options(spec)) for spec in specs]
        )
        with self._hooks.around_sync(adding):
            plan = plan_add_jobs(
                adding.specs,
                self._schemas,
                max_bytes=self._max_payload_bytes,
                all_or_nothing=conn is None,
            )
            jobs = await self._run_plan(plan, conn)
            adding.jobs.extend(jobs)
            return jobs
        raise GraphileWorkerError(NO_JOB_ADDED_MESSAGE)

    async def get_job(self, job_id: int, *, conn: object = None) -> Job | None:
        return await self._run_plan(plan_get_job(job_id, self._schemas), conn)

    async def get_job_by_key(self, job_key: str, *, conn: object = None) -> Job | None:
        return await self._run_plan(plan_get_job_by_key(job_key, self._schemas), conn)

    async def remove_job(self, job_key: str, *, conn: object = None) -> Job | None:
        """Remove the job with that key; one that runs is let finish and gets no other attempt."""
        return await self._run_plan(plan_remove_job(job_key, self._schemas), conn)

    async def complete_jobs(self, job_ids: Iterable[int], *, conn: object = None) -> list[Job]:
        """Delete jobs as if they were done; those that a worker holds are left out."""
        return await self._run_plan(plan_complete_jobs(job_ids, self._schemas), conn)

    async def permanently_fail_jobs(
        self, job_ids: Iterable[int], reason: str | None = None, *, conn: object = None
    ) -> list[Job]:
        """Spend all attempts of jobs; those that a worker holds are left out."""
        return await self._run_plan(
            plan_permanently_fail_jobs(job_ids, reason, self._schemas), conn
        )

    async def reschedule_jobs(
        self,
        job_ids: Iterable[int],
        *,
        run_at: RunAt | None = None,
        priority: int | None = None,
        attempts: int | None = None,
        max_attempts: int | None = None,
        conn: object = None,
    ) -> list[Job]:
        """Change what is given, zero included; jobs that a worker holds are left out."""
        plan = plan_reschedule_jobs(
            job_ids,
            self._schemas,
            run_at=run_at,
            priority=priority,
            attempts=attempts,
            max_attempts=max_attempts,
        )
        return await self._run_plan(plan, conn)

    async def list_locked_jobs(self, pool_ids: Iterable[str], *, conn: object = None) -> list[Job]:
        """The jobs that these workers hold."""
        return await self._run_plan(plan_list_locked_jobs(pool_ids, self._schemas), conn)

    async def recover_workers(
        self,
        pool_ids: Iterable[str],
        *,
        crash_retry_delay: timedelta = timedelta(0),
        conn: object = None,
    ) -> list[Job]:
        """Let the jobs of these workers run elsewhere, which must be dead; the jobs."""
        plan = plan_recover_jobs(pool_ids, crash_retry_delay, self._schemas)
        return await self._run_plan(plan, conn)

    async def force_unlock_workers(self, pool_ids: Iterable[str], *, conn: object = None) -> None:
        """Take all locks from pools that are dead; what a living one still runs may run twice."""
        await self._run_plan(plan_force_unlock_workers(pool_ids, self._schemas), conn)

    async def cleanup(
        self,
        tasks: Iterable[CleanupTask | str] = (CleanupTask.GC_JOB_QUEUES,),
        *,
        task_identifiers_to_keep: Collection[str] = (),
    ) -> dict[CleanupTask, int]:
        """Delete what nobody needs any more, beside READ COMMITTED programs that add jobs.

        How many of each kind were deleted.
        """
        plan = plan_cleanup(tasks, task_identifiers_to_keep, self._schemas)
        return await run_plan(self._db, plan)

    async def list_known_crontabs(self, *, conn: object = None) -> dict[str, KnownCrontab]:
        """What the database knows of cron items, by identifier: since when, and the last minute."""
        return await self._run_plan(plan_list_known_crontabs(self._schemas), conn)

    async def get_tuning(self, *, conn: object = None) -> Tuning:
        """Which settings of tables and server suit a queue, beside those that are set."""
        return await self._run_plan(plan_get_tuning(self._schemas), conn)

    async def apply_tuning(self) -> list[str]:
        """Set what `tuning` says of the tables that this role owns; those that were changed."""
        return await run_plan(self._db, plan_apply_tuning(self._schemas))

    async def migrate(self) -> int:
        """Install or upgrade the schema; the level at which it then stands."""
        async with self._hooks.around_async(Migrating(schema=self._schemas.shared)):
            return await run_plan(self._db, plan_migrate(self._schemas))
        raise GraphileWorkerError(NOT_MIGRATED_MESSAGE)

    async def check_schema(self) -> int:
        """The level of the schema if it can be used as it is; creates nothing."""
        return await run_plan(self._db, plan_check_schema(self._schemas))

    async def close(self) -> None:
        """Close what the client opened; a pool or engine of yours stays open."""
        await self._db.close()

    async def release(self) -> None:
        """`close`, by the reference's name."""
        await self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _apply_task_options(self, spec: JobSpec) -> JobSpec:
        if self._tasks is None or not isinstance(spec, JobSpec):
            return spec
        return self._tasks.completed(spec)

    def _set_run_at(self, spec: JobSpec) -> JobSpec:
        if self._use_local_time and isinstance(spec, JobSpec) and spec.run_at is None:
            return replace(spec, run_at=self._clock.now())
        return spec

    async def _run_plan(self, plan: Plan[T], conn: object) -> T:
        if conn is None:
            return await run_plan(self._db, plan)
        return await run_plan_on(adapt_connection(conn, self._schemas), plan)


async def run_migrations(
    database: object = None,
    *,
    options: WorkerOptions | None = None,
    hooks: Hooks | None = None,
) -> int:
    """Install or upgrade the schema and return its level."""
    chosen = options or WorkerOptions()
    async with Client(
        database, schema=chosen.schema, ext_schema=chosen.ext_schema, hooks=hooks
    ) as client:
        return await client.migrate()


async def make_worker_utils(
    database: object = None,
    *,
    schema: str | None = None,
    ext_schema: str | None = None,
    use_local_time: bool = False,
    max_payload_bytes: int | None = None,
    hooks: Hooks | None = None,
) -> Client:
    """A client on a schema that is installed or upgraded first; close it when done."""
    client = Client(
        database,
        schema=schema,
        ext_schema=ext_schema,
        use_local_time=use_local_time,
        max_payload_bytes=max_payload_bytes,
        hooks=hooks,
    )
    try:
        await client.migrate()
    except BaseException:
        await client.close()
        raise
    return client


async def add_job_adhoc(
    database: object,
    identifier: str,
    payload: Any = None,
    *,
    queue_name: str | None = None,
    run_at: RunAt | None = None,
    max_attempts: int | None = None,
    priority: int | None = None,
    job_key: str | None = None,
    job_key_mode: JobKeyMode | JobKeyModeName | None = None,
    flags: Collection[str] | None = None,
    schema: str | None = None,
) -> Job:
    """Migrate, add one job, close: for scripts only, as each call pays for a connection of its own.

    Programs build a `Client` once and share it.
    """
    async with await make_worker_utils(database, schema=schema) as client:
        return await client.add_job(
            identifier,
            payload,
            queue_name=queue_name,
            run_at=run_at,
            max_attempts=max_attempts,
            priority=priority,
            job_key=job_key,
            job_key_mode=job_key_mode,
            flags=flags,
        )


quick_add_job = add_job_adhoc
