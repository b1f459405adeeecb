"""Add and manage jobs from async code."""

from collections.abc import Collection, Iterable
from contextlib import suppress
from copy import copy
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from graphile_worker._client import BaseClient, CallerTransaction
from graphile_worker._db.database import Database, run_plan, run_plan_on
from graphile_worker._db.external_connections import adapt_connection
from graphile_worker._db.external_pools import is_conninfo_source, open_database
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._db.sync import SyncPsycopgDatabase
from graphile_worker._metrics.definitions import AddMode
from graphile_worker._result_waiter import ResultWaiter, read_timeout
from graphile_worker._sql.plans import admin
from graphile_worker._sql.plans.cleanup import CleanupTask, plan_cleanup
from graphile_worker._sql.plans.migration import plan_check_schema, plan_migrate
from graphile_worker._sql.plans.pauses import (
    DEFAULT_WAIT,
    plan_list_pauses,
    plan_pause_queue,
    plan_pause_task,
    plan_resume_queue,
    plan_resume_task,
)
from graphile_worker._sql.plans.status import EndedJob, check_job_id, plan_get_status
from graphile_worker._sql.plans.tuning import Tuning, plan_apply_tuning, plan_get_tuning
from graphile_worker._sql.queries.claim import notify_jobs
from graphile_worker._sql.queries.cron import KnownCrontab
from graphile_worker._sql.queries.pauses import Pause
from graphile_worker._sql.query import Plan
from graphile_worker._support.call_in_thread import call_in_thread
from graphile_worker.errors import GraphileWorkerError
from graphile_worker.events import AddingJobs, Migrating
from graphile_worker.hooks import NO_JOB_ADDED_MESSAGE, NOT_MIGRATED_MESSAGE, Hooks
from graphile_worker.jobs import Job, JobOptions, JobSpec, RunAt, build_spec
from graphile_worker.options import WorkerOptions
from graphile_worker.results import JobStatus
from graphile_worker.tasks import ReadResult

if TYPE_CHECKING:
    from graphile_worker._announcer import LoopSender, Send

T = TypeVar("T")


class Client(BaseClient):
    """Add and manage jobs. Create one client and share it.

    Most methods take `conn`, your psycopg, asyncpg or SQLAlchemy connection: the call then joins
    its transaction.

    Args:
        database: Connection string or a function that returns one (default: `DATABASE_URL`, then
            `PGDATABASE`), or your pool: a psycopg AsyncConnectionPool, an asyncpg Pool or a
            SQLAlchemy AsyncEngine. The client never closes your pool.
        schema: Schema of Graphile Worker (default: `GRAPHILE_WORKER_SCHEMA`).
        ext_schema: Companion schema (default: the name of the schema and `_ext`).
        use_local_time: Set `run_at` from this machine's clock, not from the database's.
        max_payload_bytes: Largest payload that `add_job` accepts.
        prepared_statements: Turn this off behind a pooler that does not support them.
        hooks: Hooks to call around `AddingJobs` and `Migrating`.
        clock: Clock for `use_local_time`.
        tasks: App or router. Jobs of its tasks get their options, and payloads are checked.
        actor: Who changes jobs, for the audit (default: only the database role is recorded).
        notify: When workers are notified of added jobs: `on_commit`, or `coalesced` to notify them
            soon after the commit of many jobs, or `never` to let them poll.
        notify_interval: Shortest time between two coalesced notifications.
    """

    def _open(self, source: object, *, prepared_statements: bool) -> None:
        self._use_database(
            open_database(source, self._schemas, prepared_statements=prepared_statements)
        )
        self._loop_sender: LoopSender | None = None

    def _use_database(self, database: Database) -> None:
        self._db = database
        ended_jobs = self._ended_jobs
        # Without a reference to the client: in a cycle, its connections would not be closed as soon
        # as the last reference to it is gone.
        self._waiter = ResultWaiter(
            lambda job_ids: run_plan(database, ended_jobs.plan_find(job_ids))
        )

    def _with_database(self, database: Database) -> Self:
        """Return the same client on other connections. Both share one announcer."""
        client = copy(self)
        client._use_database(database)
        return client

    def _build_send(self, source: object, *, prepared_statements: bool) -> "Send":
        if is_conninfo_source(source):
            # Each thread has its own connection.
            database = SyncPsycopgDatabase(
                source, self._schemas, prepared_statements=prepared_statements
            )
            return lambda count: database.run(notify_jobs(count))
        from graphile_worker._announcer import LoopSender

        self._loop_sender = LoopSender(self._db)
        return self._loop_sender

    async def add_job(
        self,
        identifier: str,
        payload: Any = None,
        *,
        conn: object = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Add a job.

        Args:
            identifier: Name of the task.
            payload: Any value that JSON can represent.
            conn: Your connection, whose transaction the call joins.
            options: See `JobOptions`.

        Returns:
            The job that was added, or updated by its `job_key`.

        Raises:
            JobSpecError: The job cannot be stored.
            SchemaMissing: The schema is not installed.
        """
        return await self.add_spec(self._build_spec(identifier, payload, options), conn=conn)

    async def add_spec(self, spec: JobSpec, *, conn: object = None) -> Job:
        """Add the job of a spec. See `add_job`.

        Args:
            spec: The job to add.
            conn: Your connection, whose transaction the call joins.
        """
        adding = self._build_operation([spec])
        with self._hooks.around_sync(adding):
            job = await self._run_plan(self._plan_add_job(adding, conn), conn)
            adding.jobs.append(job)
            self._handle_added(adding, AddMode.SINGLE, conn)
            return job
        raise GraphileWorkerError(NO_JOB_ADDED_MESSAGE)

    async def add_jobs(self, specs: Iterable[JobSpec], *, conn: object = None) -> list[Job]:
        """Add jobs in one round trip: all or none.

        Args:
            specs: The jobs to add.
            conn: Your connection, whose transaction the call joins.

        Returns:
            The jobs, in the order of their specs.

        Raises:
            JobSpecError: A job cannot be stored.
        """
        adding = self._build_operation(map(self._apply_task_options, specs))
        with self._hooks.around_sync(adding):
            jobs = await self._run_plan(self._plan_add_jobs(adding, conn), conn)
            adding.jobs.extend(jobs)
            self._handle_added(adding, AddMode.BATCH, conn)
            return jobs
        raise GraphileWorkerError(NO_JOB_ADDED_MESSAGE)

    async def get_job(self, job_id: int, *, conn: object = None) -> Job | None:
        """Get a job by its id.

        Args:
            job_id: Id of the job.
            conn: Your connection, whose transaction the call joins.

        Returns:
            The job, or None if no job has the id.
        """
        return await self._run_plan(admin.plan_get_job(job_id, self._schemas), conn)

    async def get_job_by_key(self, job_key: str, *, conn: object = None) -> Job | None:
        """Get a job by its key.

        Args:
            job_key: Key of the job.
            conn: Your connection, whose transaction the call joins.

        Returns:
            The job, or None if no job has the key.
        """
        return await self._run_plan(admin.plan_get_job_by_key(job_key, self._schemas), conn)

    async def status(self, job_id: int, *, conn: object = None) -> JobStatus:
        """Get what is known of a job: its state, attempts, progress, error and times.

        Args:
            job_id: Id of the job.
            conn: Your connection, whose transaction the call joins.

        Returns:
            The status. Its state is unknown if the job is deleted and left no outcome.
        """
        return await self._run_plan(plan_get_status(job_id, self._schemas), conn)

    async def result(self, job_id: int, *, timeout: timedelta | None = None) -> Any:  # noqa: ASYNC109
        """Wait until a job ends, and return what its task returned.

        Args:
            job_id: Id of the job.
            timeout: Longest wait (default: no limit).

        Returns:
            The result, read by the return annotation of the task if the client knows the task,
            else as plain JSON.

        Raises:
            JobFailedError: The job permanently failed.
            ResultUnknownError: The job is deleted and left no result. An id that is not visible in
                the queue counts as deleted, so wait after the commit that adds the job.
            ResultError: The stored result does not have the task's return type.
            TimeoutError: The job did not end in time.
        """
        return await self._wait_for_result(job_id, timeout)

    async def remove_job(
        self, job_key: str, *, shard_key: str | None = None, conn: object = None
    ) -> Job | None:
        """Remove the job with this key. A running job finishes and is not retried.

        Args:
            job_key: Key of the job.
            shard_key: Used by `Shards` only: the key that chose the shard of the job.
            conn: Your connection, whose transaction the call joins.

        Returns:
            The job, or None if no job has the key.
        """
        return await self._run_plan(admin.plan_remove_job(job_key, self._schemas), conn)

    async def complete_jobs(self, job_ids: Iterable[int], *, conn: object = None) -> list[Job]:
        """Delete jobs as if they had succeeded. Jobs that a worker holds are left out.

        Args:
            job_ids: Ids of the jobs.
            conn: Your connection, whose transaction the call joins.

        Returns:
            The jobs that were deleted.
        """
        return await self._run_plan(
            admin.plan_complete_jobs(job_ids, self._schemas, actor=self._actor), conn
        )

    async def permanently_fail_jobs(
        self, job_ids: Iterable[int], reason: str | None = None, *, conn: object = None
    ) -> list[Job]:
        """Fail jobs permanently. Jobs that a worker holds are left out.

        Args:
            job_ids: Ids of the jobs.
            reason: Text for `last_error`.
            conn: Your connection, whose transaction the call joins.

        Returns:
            The jobs that were changed.
        """
        plan = admin.plan_permanently_fail_jobs(job_ids, reason, self._schemas, actor=self._actor)
        return await self._run_plan(plan, conn)

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
        """Change jobs. Jobs that a worker holds are left out, and None changes nothing.

        Args:
            job_ids: Ids of the jobs.
            run_at: New earliest start.
            priority: New priority.
            attempts: New number of attempts already made. 0 gives the job all attempts again.
            max_attempts: New maximum of attempts.
            conn: Your connection, whose transaction the call joins.

        Returns:
            The jobs that were changed.
        """
        plan = admin.plan_reschedule_jobs(
            job_ids,
            self._schemas,
            run_at=run_at,
            priority=priority,
            attempts=attempts,
            max_attempts=max_attempts,
            actor=self._actor,
        )
        return await self._run_plan(plan, conn)

    async def list_locked_jobs(self, pool_ids: Iterable[str], *, conn: object = None) -> list[Job]:
        """List the jobs that worker pools hold.

        Args:
            pool_ids: Ids of the pools, as in `locked_by`.
            conn: Your connection, whose transaction the call joins.

        Returns:
            The locked jobs of these pools.
        """
        return await self._run_plan(admin.plan_list_locked_jobs(pool_ids, self._schemas), conn)

    async def recover_workers(
        self,
        pool_ids: Iterable[str],
        *,
        crash_retry_delay: timedelta = timedelta(0),
        conn: object = None,
    ) -> list[Job]:
        """Release the jobs of dead worker pools, so that other workers run them.

        Args:
            pool_ids: Ids of the pools. A job that an alive pool is running may run twice.
            crash_retry_delay: Delay before jobs that were running are retried.
            conn: Your connection, whose transaction the call joins.

        Returns:
            The jobs that were released.
        """
        plan = admin.plan_recover_jobs(
            pool_ids, crash_retry_delay, self._schemas, actor=self._actor
        )
        return await self._run_plan(plan, conn)

    async def force_unlock_workers(self, pool_ids: Iterable[str], *, conn: object = None) -> None:
        """Release all locks of dead worker pools. A job of an alive pool may run twice.

        Args:
            pool_ids: Ids of the pools, as in `locked_by`.
            conn: Your connection, whose transaction the call joins.
        """
        await self._run_plan(
            admin.plan_force_unlock_workers(pool_ids, self._schemas, actor=self._actor), conn
        )

    async def pause_queue(
        self,
        name: str,
        *,
        duration: timedelta | None = None,
        reason: str | None = None,
        actor: str | None = None,
        wait: timedelta = DEFAULT_WAIT,
        conn: object = None,
    ) -> Pause:
        """Pause a named queue: no worker in any language starts jobs of it.

        While a job of the queue runs, the call waits for its end, and no worker starts the next
        one. A queue that does not exist is created, and a paused one gets the new values.

        Args:
            name: Name of the queue.
            duration: The pause ends by itself after this time (default: without an end). That
                needs a running Python worker.
            reason: Why, for other people.
            actor: Who pauses the queue (default: the actor of this client, or the database role).
            wait: Longest wait for a running job.
            conn: Your connection, whose transaction the call joins.

        Returns:
            The pause.

        Raises:
            QueueBusy: A worker did not release the queue in time.
            JobSpecError: An argument is not valid.
            SchemaError: The schema cannot store the end of the pause.
        """
        plan = plan_pause_queue(
            name,
            self._schemas,
            duration=duration,
            reason=reason,
            actor=actor or self._actor,
            wait=wait,
        )
        return await self._run_plan(plan, conn)

    async def resume_queue(
        self,
        name: str,
        *,
        actor: str | None = None,
        wait: timedelta = DEFAULT_WAIT,
        conn: object = None,
    ) -> bool:
        """Resume a paused named queue. The lock of a worker stays.

        Args:
            name: Name of the queue.
            actor: Who resumes the queue (default: the actor of this client, or the database role).
            wait: Longest wait for a job that still runs.
            conn: Your connection, whose transaction the call joins.

        Returns:
            Whether the queue was paused.

        Raises:
            QueueBusy: A job of the queue did not end in time.
        """
        plan = plan_resume_queue(name, self._schemas, actor=actor or self._actor, wait=wait)
        return await self._run_plan(plan, conn)

    async def pause_task(
        self,
        name: str,
        *,
        duration: timedelta | None = None,
        reason: str | None = None,
        actor: str | None = None,
        conn: object = None,
    ) -> Pause:
        """Pause a task: Python workers start no jobs of it. Jobs that run continue.

        Args:
            name: Identifier of the task.
            duration: The pause ends by itself after this time (default: without an end).
            reason: Why, for other people.
            actor: Who pauses the task (default: the actor of this client, or the database role).
            conn: Your connection, whose transaction the call joins.

        Returns:
            The pause.

        Raises:
            JobSpecError: An argument is not valid.
            SchemaError: The companion schema cannot store pauses.
        """
        plan = plan_pause_task(
            name, self._schemas, duration=duration, reason=reason, actor=actor or self._actor
        )
        return await self._run_plan(plan, conn)

    async def resume_task(
        self, name: str, *, actor: str | None = None, conn: object = None
    ) -> bool:
        """Resume a paused task.

        Args:
            name: Identifier of the task.
            actor: Who resumes the task (default: the actor of this client, or the database role).
            conn: Your connection, whose transaction the call joins.

        Returns:
            Whether the task was paused.

        Raises:
            SchemaError: The companion schema cannot store pauses.
        """
        plan = plan_resume_task(name, self._schemas, actor=actor or self._actor)
        return await self._run_plan(plan, conn)

    async def list_pauses(self, *, conn: object = None) -> list[Pause]:
        """List the paused tasks and named queues: who paused them, why, and until when.

        Args:
            conn: Your connection, whose transaction the call joins.

        Returns:
            The pauses, by kind and name.
        """
        return await self._run_plan(plan_list_pauses(self._schemas), conn)

    async def cleanup(
        self,
        tasks: Iterable[CleanupTask | str] = (CleanupTask.GC_JOB_QUEUES,),
        *,
        task_identifiers_to_keep: Collection[str] = (),
    ) -> dict[CleanupTask, int]:
        """Delete unused rows. Programs at READ COMMITTED can add jobs at the same time.

        Args:
            tasks: What to delete.
            task_identifiers_to_keep: Task names to keep although no job uses them.

        Returns:
            The number of deleted rows per cleanup task.

        Raises:
            CleanupBlocked: Transactions that add jobs stayed open.
        """
        plan = plan_cleanup(tasks, task_identifiers_to_keep, self._schemas, actor=self._actor)
        return await run_plan(self._db, plan)

    async def list_known_crontabs(self, *, conn: object = None) -> dict[str, KnownCrontab]:
        """List the cron items that the database knows.

        Args:
            conn: Your connection, whose transaction the call joins.

        Returns:
            The items by identifier, each with the times when it was first seen and last run.
        """
        return await self._run_plan(admin.plan_list_known_crontabs(self._schemas), conn)

    async def get_tuning(self, *, conn: object = None) -> Tuning:
        """Compare the settings of tables and server with those that suit a queue.

        Args:
            conn: Your connection, whose transaction the call joins.

        Returns:
            The settings, and the SQL that changes them.
        """
        return await self._run_plan(plan_get_tuning(self._schemas), conn)

    async def apply_tuning(self) -> list[str]:
        """Apply the table settings of `get_tuning` where this role owns the table.

        Returns:
            The names of the tables that were changed.
        """
        return await run_plan(self._db, plan_apply_tuning(self._schemas))

    async def migrate(self) -> int:
        """Install or upgrade the schema.

        Returns:
            The new level of the schema.

        Raises:
            SchemaError: The schema cannot be upgraded.
        """
        async with self._hooks.around_async(Migrating(schema=self._schemas.shared)):
            return await run_plan(self._db, plan_migrate(self._schemas, self._get_retentions()))
        raise GraphileWorkerError(NOT_MIGRATED_MESSAGE)

    async def check_schema(self) -> int:
        """Check that this release can use the schema, without changing it.

        Returns:
            The level of the schema.

        Raises:
            SchemaError: The schema is missing, too old or too new.
        """
        return await run_plan(self._db, plan_check_schema(self._schemas))

    async def close(self) -> None:
        """Close the connections that the client opened. Your pool stays open.

        Callers that wait for a result get an error.
        """
        self._waiter.close()
        await self._close_announcer()
        await self._db.close()

    def _discard(self) -> None:
        """Close the connections after the event loop was closed, in which nothing can wait."""
        if self._announcer is not None:
            self._announcer.close(timeout=0.0)
        if isinstance(self._db, PsycopgDatabase):
            self._db.discard()

    async def _close_announcer(self) -> None:
        if self._announcer is not None:
            # Tasks may use all threads of the loop's executor.
            await call_in_thread(self._announcer.close)

    async def release(self) -> None:
        """Call `close`, by its name in Graphile Worker for Node."""
        await self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _wait_for_result(
        self,
        job_id: int,
        timeout: timedelta | None,  # noqa: ASYNC109
        *,
        read_result: ReadResult | None = None,
        caller: CallerTransaction | None = None,
    ) -> Any:
        check_job_id(job_id)
        read_timeout(timeout)
        ended = None
        if self._needs_look(caller):
            ended = await self._look_for_end(job_id, caller)
        if ended is None:
            ended = await self._waiter.wait(job_id, timeout)
        return self._read_result(ended, read_result)

    def _handle_added(self, adding: AddingJobs, mode: AddMode, conn: object) -> None:
        if self._loop_sender is not None:
            self._loop_sender.use_running_loop()
        super()._handle_added(adding, mode, conn)

    async def _look_for_end(self, job_id: int, caller: CallerTransaction | None) -> EndedJob | None:
        """Find the end of a job without waiting, because the caller's transaction is open.

        Returns:
            None if the job is committed, so that the caller may wait.

        Raises:
            OpenTransactionError: Workers cannot see the job, or the caller may not wait.
        """
        look = self._ended_jobs.plan_find
        ended = (await self._run_plan(look([job_id]), None)).get(job_id)
        if self._is_final(ended, caller):
            return ended
        if caller is not None and ended is None and caller.added is not None:
            # A pool may have lent the connection again. Then its transaction is another one.
            job = await self._run_plan(admin.plan_get_job(job_id, self._schemas), None)
            is_committed = job is not None and job.revision >= caller.added.revision
            if is_committed and not self._shares_transaction:
                return None
        if caller is not None and ended is not None:
            with suppress(Exception):
                found = await self._run_plan(look([job_id]), caller.connection)
                if job_id in found:
                    return found[job_id]
        raise self._build_transaction_error(job_id, caller)

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
    """Install or upgrade the schema.

    Args:
        database: See `Client`.
        options: The options `schema` and `ext_schema` apply.
        hooks: Hooks to call around `Migrating`.

    Returns:
        The new level of the schema.
    """
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
    """Install or upgrade the schema and return a client, which you close. See `Client`.

    Returns:
        The client.
    """
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
    schema: str | None = None,
    **options: Unpack[JobOptions],
) -> Job:
    """Migrate, add one job and close the connection.

    For scripts only, because each call opens a connection. Programs share a `Client`.

    Args:
        database: See `Client`.
        identifier: Name of the task.
        payload: Any value that JSON can represent.
        schema: Schema of Graphile Worker.
        options: See `JobOptions`.

    Returns:
        The job that was added, or updated by its `job_key`.
    """
    spec = build_spec(identifier, payload, options)
    async with await make_worker_utils(database, schema=schema) as client:
        return await client.add_spec(spec)


quick_add_job = add_job_adhoc
