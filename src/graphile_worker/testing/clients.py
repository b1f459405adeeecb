"""The clients of an app in a test: they add jobs on its connection, by its clock."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from graphile_worker import sync
from graphile_worker.client import Client
from graphile_worker.jobs import Job, JobSpec
from graphile_worker.sql.query import Plan
from graphile_worker.testing.clock import TestClock
from graphile_worker.testing.lines import BlockingTestDatabase, TestDatabase

T = TypeVar("T")


class Desk(Protocol):
    """Whoever wants to know what was added."""

    clock: TestClock

    def is_at(self, conn: object) -> bool:
        """Is that the connection of the test, or none that was named?"""
        ...

    def added(self, jobs: Sequence[Job], conn: object) -> None: ...

    async def added_async(self, jobs: Sequence[Job], conn: object) -> None: ...


class TestClient(Client):
    """For async code."""

    __test__ = False
    desk: Desk
    database: TestDatabase

    async def add_spec(self, spec: JobSpec, *, conn: object = None) -> Job:
        job = await super().add_spec(spec, conn=conn)
        await self.desk.added_async([job], conn)
        return job

    async def add_jobs(self, specs: Iterable[JobSpec], *, conn: object = None) -> list[Job]:
        jobs = await super().add_jobs(specs, conn=conn)
        await self.desk.added_async(jobs, conn)
        return jobs

    def _timed(self, spec: JobSpec) -> JobSpec:
        return timed(spec, self.desk.clock)

    async def _perform(self, plan: Plan[T], conn: object) -> T:
        if self.desk.is_at(conn):
            return await super()._perform(plan, None)
        await self.database.prepare()
        return await super()._perform(plan, conn)

    async def close(self) -> None:
        """Nothing: the connection is the test's."""


class BlockingTestClient(sync.Client):
    """For blocking code."""

    desk: Desk
    database: BlockingTestDatabase

    def add_spec(self, spec: JobSpec, *, conn: object = None) -> Job:
        job = super().add_spec(spec, conn=conn)
        self.desk.added([job], conn)
        return job

    def add_jobs(self, specs: Iterable[JobSpec], *, conn: object = None) -> list[Job]:
        jobs = super().add_jobs(specs, conn=conn)
        self.desk.added(jobs, conn)
        return jobs

    def _timed(self, spec: JobSpec) -> JobSpec:
        return timed(spec, self.desk.clock)

    def _perform(self, plan: Plan[T], conn: object) -> T:
        if self.desk.is_at(conn):
            return super()._perform(plan, None)
        self.database.prepare()
        return super()._perform(plan, conn)

    def close(self) -> None:
        """Nothing: the connection is the test's."""


def timed(spec: JobSpec, clock: TestClock) -> JobSpec:
    """The spec with a time of its own. The server's, in a transaction, is when that began."""
    if not isinstance(spec, JobSpec):
        return spec
    return replace(spec, run_at=clock.now() if spec.run_at is None else clock.at(spec.run_at))
