"""Spread jobs over several databases (shards), from async code."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from contextvars import Context
from datetime import timedelta
from typing import Any, Self, TypeVar, Unpack

from graphile_worker._db.database import drive, run_plan_on, with_retries
from graphile_worker._shards import (
    BaseShards,
    Calls,
    ClientOptions,
    OnShard,
    Route,
    ShardStatus,
    rendezvous,
)
from graphile_worker._sql.plans.shards import plan_lock_kept
from graphile_worker.client import Client
from graphile_worker.jobs import Job, JobOptions, JobSpec
from graphile_worker.results import JobStatus

__all__ = ["ShardStatus", "Shards", "rendezvous"]

T = TypeVar("T")


class Shards(BaseShards):
    """Several databases as one queue. A key decides which of them gets a job.

    Pass it to `App`, `run` or `Runner` in the place of a database, or add jobs with its methods.
    Jobs without a key go to a random shard. `client` returns the client of one shard, which has
    all further methods.

    Args:
        databases: Database of each shard by its name, see `Client`. A name decides which keys its
            shard gets, so a shard keeps its name when it moves to another server.
        route: Function of a key and the names of the shards, which returns one of the names
            (default: `rendezvous`).
        new: Shards that were added. A key that moves to one of them is looked for on its former
            shard first, until that has no job with this key or in this queue.
        draining: Shards that get no more keys. Workers run the jobs that they still have.
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
        """Return the client of one shard, for example to pause a queue there.

        Args:
            name: Name of the shard.

        Returns:
            The client. `close` of the shards closes it.

        Raises:
            ConfigurationError: No shard has this name.
        """
        client: Client = self._get_client(name)
        return client

    async def add_job(
        self,
        identifier: str,
        payload: Any = None,
        *,
        conn: object = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Add a job on the shard of its `shard_key`, `job_key` or `queue_name`.

        Args:
            identifier: Name of the task.
            payload: Any value that JSON can represent.
            conn: Your connection to the shard of the job, whose transaction the call joins.
            options: See `JobOptions`.

        Returns:
            The job. `job.shard` is the name of its shard.

        Raises:
            JobSpecError: The job cannot be stored, or has a key and a queue and no `shard_key`.
            ShardError: The connection belongs to another shard.
        """
        return await self.add_spec(self._build_spec(identifier, payload, options), conn=conn)

    async def add_spec(self, spec: JobSpec, *, conn: object = None) -> Job:
        """Add the job of a spec. See `add_job`.

        Args:
            spec: The job to add.
            conn: Your connection to the shard of the job, whose transaction the call joins.
        """
        return await self._run(self._add_spec(spec, conn))

    async def add_jobs(self, specs: Iterable[JobSpec], *, conn: object = None) -> list[Job]:
        """Add jobs: on each shard all or none. All jobs without a key go to one shard.

        Args:
            specs: The jobs to add.
            conn: Your connection to the shard of all jobs, whose transaction the call joins.

        Returns:
            The jobs, in the order of their specs.

        Raises:
            JobSpecError: A job cannot be stored, or has a key and a queue and no `shard_key`.
            ShardError: The connection belongs to another shard.
        """
        return await self._run(self._add_jobs(specs, conn))

    async def get_job(
        self, job_id: int, *, shard: str | None = None, conn: object = None
    ) -> Job | None:
        """Get a job by its id, which is unique only on its shard.

        Args:
            job_id: Id of the job.
            shard: Name of its shard (default: the shard of `conn`).
            conn: Your connection, whose transaction the call joins.

        Returns:
            The job, or None.
        """
        return await self._run(self._get_job(job_id, shard, conn))

    async def get_job_by_key(
        self, job_key: str, *, shard_key: str | None = None, conn: object = None
    ) -> Job | None:
        """Get a job by its key.

        Args:
            job_key: Key of the job.
            shard_key: The `shard_key` with which it was added (default: its key).
            conn: Your connection, whose transaction the call joins.

        Returns:
            The job, or None.
        """
        return await self._run(self._find_by_key("get_job_by_key", job_key, shard_key, conn))

    async def remove_job(
        self, job_key: str, *, shard_key: str | None = None, conn: object = None
    ) -> Job | None:
        """Remove the job with this key. A running job finishes and is not retried.

        See `get_job_by_key` for the arguments.
        """
        return await self._run(self._find_by_key("remove_job", job_key, shard_key, conn))

    async def status(
        self, job_id: int, *, shard: str | None = None, conn: object = None
    ) -> JobStatus:
        """Get what is known of a job. See `get_job` for the arguments, and `Client.status`."""
        status: JobStatus = await self._run(self._call_by_id("status", job_id, shard, conn))
        return status

    async def result(
        self,
        job_id: int,
        *,
        shard: str,
        timeout: timedelta | None = None,  # noqa: ASYNC109
    ) -> Any:
        """Wait until a job of a shard ends, and return what its task returned. See `Client.result`.

        Args:
            job_id: Id of the job.
            shard: Name of its shard.
            timeout: Longest wait (default: no limit).

        Returns:
            The result.
        """
        return await self.client(shard).result(job_id, timeout=timeout)

    async def read_status(self) -> list[ShardStatus]:
        """Count the jobs of each shard, and those whose key now belongs to another shard.

        A key here is the job key or the queue of a job: no database stores another `shard_key`.

        Returns:
            The status of each shard, in the order of their names.
        """
        return await self._run(self._read_status())

    async def migrate(self) -> int:
        """Install or upgrade the schema on all shards.

        Returns:
            The lowest level of the schemas.
        """
        return await self._run(self._migrate())

    async def close(self) -> None:
        """Close the connections of all shards."""
        for task in (tasks := list(self._identities.tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()

    def _discard(self) -> None:
        """Close the connections after the event loop was closed, in which nothing can wait."""
        for client in self._clients.values():
            client._discard()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _run(self, calls: Calls[T]) -> T:
        return await drive(calls, self._call)

    async def _call(self, step: OnShard) -> Any:
        return await step.call(self._get_client(step.name))

    def _run_in_background(self, calls: Calls[None]) -> None:
        async def run() -> None:
            with suppress(Exception):
                await self._run(calls)

        # In an empty context: the caller's may name a connection for its own calls.
        tasks = self._identities.tasks
        task = asyncio.create_task(run(), context=Context())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _add_where_kept(self, spec: JobSpec, client: Client) -> Job | None:
        async def add() -> Job | None:
            async with client._db.transaction() as connection:
                if not await run_plan_on(
                    connection, plan_lock_kept(spec, client._schemas, client._get_local_time())
                ):
                    return None
                return await client.add_spec(spec, conn=connection.raw)

        return await with_retries(add)

    def _open_client(self, name: str, options: Mapping[str, Any]) -> Client:
        return Client(self.databases[name], **options)
