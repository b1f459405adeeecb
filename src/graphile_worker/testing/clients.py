"""The clients of an app in a test: they add jobs on its connection, by its clock."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from graphile_worker import sync
from graphile_worker._sql.query import Plan
from graphile_worker.client import Client
from graphile_worker.jobs import Job, JobSpec
from graphile_worker.testing.clock import TestClock
from graphile_worker.testing.connections import SyncTestDatabase, TestDatabase

T = TypeVar("T")


class TestTarget(Protocol):
    """Whoever wants to know what was added."""

    clock: TestClock

    def is_test_connection(self, conn: object) -> bool:
        """Is that the connection of the test, or none that was named?"""
        ...

    def handle_added(self, jobs: Sequence[Job], conn: object) -> None: ...

    async def handle_added_async(self, jobs: Sequence[Job], conn: object) -> None: ...


class TestClient(Client):
    """For async code."""

    __test__ = False
    target: TestTarget
    database: TestDatabase

    async def add_spec(self, spec: JobSpec, *, conn: object = None) -> Job:
        job = await super().add_spec(spec, conn=conn)
        await self.target.handle_added_async([job], conn)
        return job

    async def add_jobs(self, specs: Iterable[JobSpec], *, conn: object = None) -> list[Job]:
        jobs = await super().add_jobs(specs, conn=conn)
        await self.target.handle_added_async(jobs, conn)
        return jobs

    def _set_run_at(self, spec: JobSpec) -> JobSpec:
        return set_run_at(spec, self.target.clock)

    async def _run_plan(self, plan: Plan[T], conn: object) -> T:
        if self.target.is_test_connection(conn):
            return await super()._run_plan(plan, None)
        await self.database.prepare()
        return await super()._run_plan(plan, conn)

    async def close(self) -> None:
        """Nothing: the connection is the test's."""


class SyncTestClient(sync.Client):
    """For blocking code."""

    target: TestTarget
    database: SyncTestDatabase

    def add_spec(self, spec: JobSpec, *, conn: object = None) -> Job:
        job = super().add_spec(spec, conn=conn)
        self.target.handle_added([job], conn)
        return job

    def add_jobs(self, specs: Iterable[JobSpec], *, conn: object = None) -> list[Job]:
        jobs = super().add_jobs(specs, conn=conn)
        self.target.handle_added(jobs, conn)
        return jobs

    def _set_run_at(self, spec: JobSpec) -> JobSpec:
        return set_run_at(spec, self.target.clock)

    def _run_plan(self, plan: Plan[T], conn: object) -> T:
        if self.target.is_test_connection(conn):
            return super()._run_plan(plan, None)
        self.database.prepare()
        return super()._run_plan(plan, conn)

    def close(self) -> None:
        """Nothing: the connection is the test's."""


def set_run_at(spec: JobSpec, clock: TestClock) -> JobSpec:
    """The spec with a time of its own. The server's, in a transaction, is when that began."""
    if not isinstance(spec, JobSpec):
        return spec
    return replace(spec, run_at=clock.now() if spec.run_at is None else clock.resolve(spec.run_at))
