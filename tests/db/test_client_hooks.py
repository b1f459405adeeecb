"""Hooks around adding and migrating with the async and the blocking client."""

from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest

from graphile_worker import GraphileWorkerError, JobSpec
from graphile_worker.events import AddingJobs, Migrating
from tests.support.clients import KINDS, open_client


@pytest.fixture
async def client(kind, database, hooks):
    async with open_client(kind, database, hooks=hooks) as client:
        yield client


def stored(sql) -> list[object]:
    return [row[0] for row in sql.run("select payload from :schema._private_jobs order by id")]


async def test_adding_is_wrapped_and_shows_the_specs(client, hooks):
    seen: list[object] = []

    @hooks.around(AddingJobs)
    @contextmanager
    def watched(adding):
        seen.append([spec.identifier for spec in adding.specs])
        yield
        seen.append("added")

    await client.add_job("one")
    await client.add_jobs([JobSpec("two"), JobSpec("three")])

    assert seen == [["one"], "added", ["two", "three"], "added"]


async def test_adding_jobs_has_the_added_jobs(client, hooks):
    before, after = [], []

    @hooks.around(AddingJobs)
    @contextmanager
    def watched(adding):
        before.append(list(adding.jobs))
        yield
        after.append(adding.jobs)

    one = await client.add_job("one")
    many = await client.add_jobs([JobSpec("two", job_key="a"), JobSpec("three")])

    assert before == [[], []]
    assert after == [[one], many]


async def test_adding_jobs_has_no_jobs_after_an_error(client, hooks):
    moments = []

    @hooks.around(AddingJobs)
    @contextmanager
    def watched(adding):
        moments.append(adding)
        yield

    with pytest.raises(GraphileWorkerError):
        await client.add_job("one", {"not": object()})

    assert [moment.jobs for moment in moments] == [[]]


async def test_a_hook_may_replace_specs(client, hooks, sql):
    @hooks.around(AddingJobs)
    @contextmanager
    def traced(adding):
        adding.specs[:] = [replace(spec, payload={"traced": True}) for spec in adding.specs]
        yield

    await client.add_job("one")
    await client.add_jobs([JobSpec("two")])

    assert stored(sql) == [{"traced": True}] * 2


async def test_an_error_in_a_hook_fails_the_call_and_adds_nothing(client, hooks, sql):
    @hooks.around(AddingJobs)
    @contextmanager
    def refusing(adding):
        raise PermissionError("not today")
        yield

    with pytest.raises(PermissionError):
        await client.add_job("one")
    with pytest.raises(PermissionError):
        await client.add_jobs([JobSpec("two")])

    assert stored(sql) == []


async def test_a_suppressed_error_raises_graphile_worker_error(client, hooks):
    @hooks.around(AddingJobs)
    @contextmanager
    def swallowing(adding):
        with suppress(Exception):
            yield

    with pytest.raises(GraphileWorkerError, match="no job was added"):
        await client.add_job("one", {"not": object()})


@pytest.mark.parametrize("kind", KINDS)
async def test_migrating_is_wrapped(kind, empty_database, hooks):
    seen = []

    @hooks.around(Migrating)
    @contextmanager
    def watched(migrating):
        seen.append(migrating.schema)
        yield
        seen.append("migrated")

    async with open_client(kind, empty_database, hooks=hooks) as client:
        await client.migrate()

    assert seen == [empty_database.schema, "migrated"]
