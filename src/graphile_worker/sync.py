"""Add and manage jobs from blocking code, with the names and signatures of `client`."""

import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from graphile_worker._client import BaseClient, CallerTransaction
from graphile_worker._db.database import (
    SyncDatabase,
    drive_sync,
    run_plan_sync,
    run_plan_sync_on,
    with_retries_sync,
)
from graphile_worker._db.external_connections import adapt_sync_connection
from graphile_worker._db.external_pools import open_sync_database
from graphile_worker._metrics.definitions import AddMode
from graphile_worker._result_waiter import SyncResultWaiter, read_timeout
from graphile_worker._shards import (
    BaseShards,
    Calls,
    ClientOptions,
    OnShard,
    Route,
    ShardStatus,
    rendezvous,
)
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
from graphile_worker._sql.plans.shards import plan_lock_kept
from graphile_worker._sql.plans.status import EndedJob, check_job_id, plan_get_status
from graphile_worker._sql.plans.tuning import Tuning, plan_apply_tuning, plan_get_tuning
from graphile_worker._sql.queries.claim import notify_jobs
from graphile_worker._sql.queries.cron import KnownCrontab
from graphile_worker._sql.queries.pauses import Pause
from graphile_worker._sql.query import Plan
from graphile_worker.errors import GraphileWorkerError
from graphile_worker.events import Migrating
from graphile_worker.hooks import NO_JOB_ADDED_MESSAGE, NOT_MIGRATED_MESSAGE, Hooks
from graphile_worker.jobs import Job, JobOptions, JobSpec, RunAt, build_spec
from graphile_worker.options import WorkerOptions
from graphile_worker.results import JobStatus
from graphile_worker.tasks import ReadResult

if TYPE_CHECKING:
    from graphile_worker._announcer import Send

T = TypeVar("T")


class Client(BaseClient):
    """Add and manage jobs without an event loop. Create one client and share it between threads.

    Most methods take `conn`, your psycopg, psycopg2, SQLAlchemy or Django connection: the call then
    joins its transaction.

    Args:
        database: Connection string or a function that returns one (default: `DATABASE_URL`, then
            `PGDATABASE`), or your pool: a psycopg ConnectionPool or a SQLAlchemy Engine. The client
            never closes your pool. Without a pool, each thread opens one connection on its first
            call.
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
        self._db: SyncDatabase = open_sync_database(
            source, self._schemas, prepared_statements=prepared_statements
        )
        database, ended_jobs = self._db, self._ended_jobs
        # Without a reference to the client: in a cycle, its connections would not be closed as soon
        # as the last reference to it is gone.
        self._waiter = SyncResultWaiter(
            lambda job_ids: run_plan_sync(database, ended_jobs.plan_find(job_ids))
        )

    def _build_send(self, source: object, *, prepared_statements: bool) -> "Send":
        # Each thread has its own connection, or takes one from the caller's pool.
        database = self._db
        return lambda count: database.run(notify_jobs(count))

    def add_job(
        self,
        identifier: str,
        payload: Any = None,
        *,
        conn: object = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Add a job. See `graphile_worker.Client.add_job`."""
        return self.add_spec(self._build_spec(identifier, payload, options), conn=conn)

    def add_spec(self, spec: JobSpec, *, conn: object = None) -> Job:
        """Add the job of a spec. See `graphile_worker.Client.add_spec`."""
        adding = self._build_operation([spec])
        with self._hooks.around_sync(adding):
            job = self._run_plan(self._plan_add_job(adding, conn), conn)
            adding.jobs.append(job)
            self._handle_added(adding, AddMode.SINGLE, conn)
            return job
        raise GraphileWorkerError(NO_JOB_ADDED_MESSAGE)

    def add_jobs(self, specs: Iterable[JobSpec], *, conn: object = None) -> list[Job]:
        """Add jobs in one round trip: all or none. See `graphile_worker.Client.add_jobs`."""
        adding = self._build_operation(map(self._apply_task_options, specs))
        with self._hooks.around_sync(adding):
            jobs = self._run_plan(self._plan_add_jobs(adding, conn), conn)
            adding.jobs.extend(jobs)
            self._handle_added(adding, AddMode.BATCH, conn)
            return jobs
        raise GraphileWorkerError(NO_JOB_ADDED_MESSAGE)

    def get_job(self, job_id: int, *, conn: object = None) -> Job | None:
        """Get a job by its id. See `graphile_worker.Client.get_job`."""
        return self._run_plan(admin.plan_get_job(job_id, self._schemas), conn)

    def get_job_by_key(self, job_key: str, *, conn: object = None) -> Job | None:
        """Get a job by its key. See `graphile_worker.Client.get_job_by_key`."""
        return self._run_plan(admin.plan_get_job_by_key(job_key, self._schemas), conn)

    def status(self, job_id: int, *, conn: object = None) -> JobStatus:
        """Get what is known of a job: its state, attempts, progress, error and times.

        See `graphile_worker.Client.status`.
        """
        return self._run_plan(plan_get_status(job_id, self._schemas), conn)

    def result(self, job_id: int, *, timeout: timedelta | None = None) -> Any:
        """Wait until a job ends, and return what its task returned.

        See `graphile_worker.Client.result`.
        """
        return self._wait_for_result(job_id, timeout)

    def remove_job(
        self, job_key: str, *, shard_key: str | None = None, conn: object = None
    ) -> Job | None:
        """Remove the job with this key. A running job finishes and is not retried.

        See `graphile_worker.Client.remove_job`.
        """
        return self._run_plan(admin.plan_remove_job(job_key, self._schemas), conn)

    def complete_jobs(self, job_ids: Iterable[int], *, conn: object = None) -> list[Job]:
        """Delete jobs as if they had succeeded. Jobs that a worker holds are left out.

        See `graphile_worker.Client.complete_jobs`.
        """
        return self._run_plan(
            admin.plan_complete_jobs(job_ids, self._schemas, actor=self._actor), conn
        )

    def permanently_fail_jobs(
        self, job_ids: Iterable[int], reason: str | None = None, *, conn: object = None
    ) -> list[Job]:
        """Fail jobs permanently. Jobs that a worker holds are left out.

        See `graphile_worker.Client.permanently_fail_jobs`.
        """
        plan = admin.plan_permanently_fail_jobs(job_ids, reason, self._schemas, actor=self._actor)
        return self._run_plan(plan, conn)

    def reschedule_jobs(
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

        See `graphile_worker.Client.reschedule_jobs`.
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
        return self._run_plan(plan, conn)

    def list_locked_jobs(self, pool_ids: Iterable[str], *, conn: object = None) -> list[Job]:
        """List the jobs that worker pools hold. See `graphile_worker.Client.list_locked_jobs`."""
        return self._run_plan(admin.plan_list_locked_jobs(pool_ids, self._schemas), conn)

    def recover_workers(
        self,
        pool_ids: Iterable[str],
        *,
        crash_retry_delay: timedelta = timedelta(0),
        conn: object = None,
    ) -> list[Job]:
        """Release the jobs of dead worker pools, so that other workers run them.

        See `graphile_worker.Client.recover_workers`.
        """
        plan = admin.plan_recover_jobs(
            pool_ids, crash_retry_delay, self._schemas, actor=self._actor
        )
        return self._run_plan(plan, conn)

    def force_unlock_workers(self, pool_ids: Iterable[str], *, conn: object = None) -> None:
        """Release all locks of dead worker pools. A job of an alive pool may run twice.

        See `graphile_worker.Client.force_unlock_workers`.
        """
        self._run_plan(
            admin.plan_force_unlock_workers(pool_ids, self._schemas, actor=self._actor), conn
        )

    def pause_queue(
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

        See `graphile_worker.Client.pause_queue`.
        """
        plan = plan_pause_queue(
            name,
            self._schemas,
            duration=duration,
            reason=reason,
            actor=actor or self._actor,
            wait=wait,
        )
        return self._run_plan(plan, conn)

    def resume_queue(
        self,
        name: str,
        *,
        actor: str | None = None,
        wait: timedelta = DEFAULT_WAIT,
        conn: object = None,
    ) -> bool:
        """Resume a paused named queue. The lock of a worker stays.

        See `graphile_worker.Client.resume_queue`.
        """
        plan = plan_resume_queue(name, self._schemas, actor=actor or self._actor, wait=wait)
        return self._run_plan(plan, conn)

    def pause_task(
        self,
        name: str,
        *,
        duration: timedelta | None = None,
        reason: str | None = None,
        actor: str | None = None,
        conn: object = None,
    ) -> Pause:
        """Pause a task: Python workers start no jobs of it. Jobs that run continue.

        See `graphile_worker.Client.pause_task`.
        """
        plan = plan_pause_task(
            name, self._schemas, duration=duration, reason=reason, actor=actor or self._actor
        )
        return self._run_plan(plan, conn)

    def resume_task(self, name: str, *, actor: str | None = None, conn: object = None) -> bool:
        """Resume a paused task.

        See `graphile_worker.Client.resume_task`.
        """
        plan = plan_resume_task(name, self._schemas, actor=actor or self._actor)
        return self._run_plan(plan, conn)

    def list_pauses(self, *, conn: object = None) -> list[Pause]:
        """List the paused tasks and named queues: who paused them, why, and until when.

        See `graphile_worker.Client.list_pauses`.
        """
        return self._run_plan(plan_list_pauses(self._schemas), conn)

    def cleanup(
        self,
        tasks: Iterable[CleanupTask | str] = (CleanupTask.GC_JOB_QUEUES,),
        *,
        task_identifiers_to_keep: Collection[str] = (),
    ) -> dict[CleanupTask, int]:
        """Delete unused rows. Programs at READ COMMITTED can add jobs at the same time.

        See `graphile_worker.Client.cleanup`.
        """
        plan = plan_cleanup(tasks, task_identifiers_to_keep, self._schemas, actor=self._actor)
        return run_plan_sync(self._db, plan)

    def list_known_crontabs(self, *, conn: object = None) -> dict[str, KnownCrontab]:
        """List the cron items that the database knows.

        See `graphile_worker.Client.list_known_crontabs`.
        """
        return self._run_plan(admin.plan_list_known_crontabs(self._schemas), conn)

    def get_tuning(self, *, conn: object = None) -> Tuning:
        """Compare the settings of tables and server with those that suit a queue.

        See `graphile_worker.Client.get_tuning`.
        """
        return self._run_plan(plan_get_tuning(self._schemas), conn)

    def apply_tuning(self) -> list[str]:
        """Apply the table settings of `get_tuning` where this role owns the table.

        See `graphile_worker.Client.apply_tuning`.
        """
        return run_plan_sync(self._db, plan_apply_tuning(self._schemas))

    def migrate(self) -> int:
        """Install or upgrade the schema. See `graphile_worker.Client.migrate`."""
        with self._hooks.around_sync(Migrating(schema=self._schemas.shared)):
            return run_plan_sync(self._db, plan_migrate(self._schemas, self._get_retentions()))
        raise GraphileWorkerError(NOT_MIGRATED_MESSAGE)

    def check_schema(self) -> int:
        """Check that this release can use the schema, without changing it.

        See `graphile_worker.Client.check_schema`.
        """
        return run_plan_sync(self._db, plan_check_schema(self._schemas))

    def close(self) -> None:
        """Close the connections that the client opened. Your pool stays open.

        Callers that wait for a result get an error.
        """
        self._waiter.close()
        if self._announcer is not None:
            self._announcer.close()
        self._db.close()

    def release(self) -> None:
        """Call `close`, by its name in Graphile Worker for Node."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _wait_for_result(
        self,
        job_id: int,
        timeout: timedelta | None,
        *,
        read_result: ReadResult | None = None,
        caller: CallerTransaction | None = None,
    ) -> Any:
        check_job_id(job_id)
        read_timeout(timeout)
        ended = None
        if self._needs_look(caller):
            ended = self._look_for_end(job_id, caller)
        if ended is None:
            ended = self._waiter.wait(job_id, timeout)
        return self._read_result(ended, read_result)

    def _look_for_end(self, job_id: int, caller: CallerTransaction | None) -> EndedJob | None:
        """Find the end of a job without waiting, because the caller's transaction is open.

        Returns:
            None if the job is committed, so that the caller may wait.

        Raises:
            OpenTransactionError: Workers cannot see the job, or the caller may not wait.
        """
        look = self._ended_jobs.plan_find
        ended = (self._run_plan(look([job_id]), None)).get(job_id)
        if self._is_final(ended, caller):
            return ended
        if caller is not None and ended is None and caller.added is not None:
            # A pool may have lent the connection again. Then its transaction is another one.
            job = self._run_plan(admin.plan_get_job(job_id, self._schemas), None)
            is_committed = job is not None and job.revision >= caller.added.revision
            if is_committed and not self._shares_transaction:
                return None
        if caller is not None and ended is not None:
            with suppress(Exception):
                found = self._run_plan(look([job_id]), caller.connection)
                if job_id in found:
                    return found[job_id]
        raise self._build_transaction_error(job_id, caller)

    def _run_plan(self, plan: Plan[T], conn: object) -> T:
        if conn is None:
            return run_plan_sync(self._db, plan)
        return run_plan_sync_on(adapt_sync_connection(conn, self._schemas), plan)


class Shards(BaseShards):
    """Several databases as one queue, without an event loop. See `graphile_worker.Shards`.

    Args:
        databases: Database of each shard by its name, see `Client`.
        route: Function of a key and the names of the shards, which returns one of the names.
        new: Shards that were added, whose keys may still be elsewhere.
        draining: Shards that get no more keys.
        options: See `Client`.

    Attributes:
        names: Names of all shards.

    Raises:
        ConfigurationError: A name is not valid, or no shard is left.
    """

    def __init__(
        self,
        databases: Mapping[str, object],
        *,
        route: Route = rendezvous,
        new: Collection[str] = (),
        draining: Collection[str] = (),
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(databases, route=route, new=new, draining=draining, **options)

    def client(self, name: str) -> Client:
        """Return the client of one shard. See `graphile_worker.Shards.client`."""
        client: Client = self._get_client(name)
        return client

    def add_job(
        self,
        identifier: str,
        payload: Any = None,
        *,
        conn: object = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Add a job on the shard of its key. See `graphile_worker.Shards.add_job`."""
        return self.add_spec(self._build_spec(identifier, payload, options), conn=conn)

    def add_spec(self, spec: JobSpec, *, conn: object = None) -> Job:
        """Add the job of a spec. See `graphile_worker.Shards.add_spec`."""
        return self._run(self._add_spec(spec, conn))

    def add_jobs(self, specs: Iterable[JobSpec], *, conn: object = None) -> list[Job]:
        """Add jobs: on each shard all or none. See `graphile_worker.Shards.add_jobs`."""
        return self._run(self._add_jobs(specs, conn))

    def get_job(self, job_id: int, *, shard: str | None = None, conn: object = None) -> Job | None:
        """Get a job by its id and its shard. See `graphile_worker.Shards.get_job`."""
        return self._run(self._get_job(job_id, shard, conn))

    def get_job_by_key(
        self, job_key: str, *, shard_key: str | None = None, conn: object = None
    ) -> Job | None:
        """Get a job by its key. See `graphile_worker.Shards.get_job_by_key`."""
        return self._run(self._find_by_key("get_job_by_key", job_key, shard_key, conn))

    def remove_job(
        self, job_key: str, *, shard_key: str | None = None, conn: object = None
    ) -> Job | None:
        """Remove the job with this key. A running job finishes and is not retried.

        See `graphile_worker.Shards.remove_job`.
        """
        return self._run(self._find_by_key("remove_job", job_key, shard_key, conn))

    def status(self, job_id: int, *, shard: str | None = None, conn: object = None) -> JobStatus:
        """Get what is known of a job. See `graphile_worker.Shards.status`."""
        status: JobStatus = self._run(self._call_by_id("status", job_id, shard, conn))
        return status

    def result(self, job_id: int, *, shard: str, timeout: timedelta | None = None) -> Any:
        """Wait until a job of a shard ends, and return what its task returned.

        See `graphile_worker.Shards.result`.
        """
        return self.client(shard).result(job_id, timeout=timeout)

    def read_status(self) -> list[ShardStatus]:
        """Count the jobs of each shard, and those whose key now belongs to another shard.

        See `graphile_worker.Shards.read_status`.
        """
        return self._run(self._read_status())

    def migrate(self) -> int:
        """Install or upgrade the schema on all shards. See `graphile_worker.Shards.migrate`."""
        return self._run(self._migrate())

    def close(self) -> None:
        """Close the connections of all shards."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self, calls: Calls[T]) -> T:
        return drive_sync(calls, self._call)

    def _run_in_background(self, calls: Calls[None]) -> None:
        def run() -> None:
            with suppress(Exception):
                self._run(calls)

        threading.Thread(target=run, name="graphile-worker shards", daemon=True).start()

    def _call(self, step: OnShard) -> Any:
        return step.call(self._get_client(step.name))

    def _add_where_kept(self, spec: JobSpec, client: Client) -> Job | None:
        def add() -> Job | None:
            database: Any = client._db
            with database.transaction() as connection:
                if not run_plan_sync_on(
                    connection, plan_lock_kept(spec, client._schemas, client._get_local_time())
                ):
                    return None
                return client.add_spec(spec, conn=connection.raw)

        return with_retries_sync(add)

    def _open_client(self, name: str, options: Mapping[str, Any]) -> Client:
        return Client(self.databases[name], **options)


def run_migrations(
    database: object = None,
    *,
    options: WorkerOptions | None = None,
    hooks: Hooks | None = None,
) -> int:
    """Install or upgrade the schema. See `graphile_worker.run_migrations`."""
    chosen = options or WorkerOptions()
    with Client(
        database, schema=chosen.schema, ext_schema=chosen.ext_schema, hooks=hooks
    ) as client:
        return client.migrate()


def make_worker_utils(
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
        client.migrate()
    except BaseException:
        client.close()
        raise
    return client


def add_job_adhoc(
    database: object,
    identifier: str,
    payload: Any = None,
    *,
    schema: str | None = None,
    **options: Unpack[JobOptions],
) -> Job:
    """Migrate, add one job and close the connection.

    For scripts only, because each call opens a connection. Programs share a `Client`.

    See `graphile_worker.add_job_adhoc`.
    """
    spec = build_spec(identifier, payload, options)
    with make_worker_utils(database, schema=schema) as client:
        return client.add_spec(spec)


quick_add_job = add_job_adhoc
