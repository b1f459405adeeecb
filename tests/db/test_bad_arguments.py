"""Arguments and payloads at and beyond their limits: stored as they are, or refused with a reason.

The cases are in tests/support/data. What JSON cannot hold is named there and built by `BUILDERS`.
"""

import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from graphile_worker import Client, Job, JobSpec, JobSpecError, sync
from graphile_worker.jobs import MAX_DATETIME, MIN_DATETIME
from tests.conftest import TestDatabase
from tests.support.cluster import Cluster
from tests.support.sql import Sql

# Heavy: the nightly tier runs it on the other versions.
pytestmark = pytest.mark.single_version

DATA = Path(__file__).parents[1] / "support" / "data"

Case = dict[str, Any]
Call = Callable[..., Awaitable[Any]]


class Colour(Enum):
    RED = "red"
    NUMBERED = {1: "one"}


@dataclass
class Address:
    street: str
    number: int


def nested(depth: int, wrap: Callable[[Any], Any], innermost: Any) -> Any:
    value = innermost
    for _ in range(depth - 1):
        value = wrap(value)
    return value


def cycle() -> list[object]:
    itself: list[object] = []
    itself.append(itself)
    return itself


BUILDERS: dict[str, Callable[..., Any]] = {
    "bytes": str.encode,
    "class": lambda: Address,
    "complex": lambda: 1j,
    "cycle": cycle,
    "dataclass": lambda: Address("High St", 1),
    "date": date.fromisoformat,
    "datetime": datetime.fromisoformat,
    "days": lambda days: timedelta(days=days),
    "decimal": Decimal,
    "depth": lambda depth: nested(depth, lambda inner: [inner], []),
    "depth_of_objects": lambda depth: nested(depth, lambda inner: {"a": inner}, {}),
    "depth_text": lambda depth: "[" * depth + "]" * depth,
    "digits": lambda digits: 10 ** (digits - 1),
    "digits_text": lambda digits: "1" * digits,
    "enum": lambda: Colour.RED,
    "enum_of_integer_keys": lambda: Colour.NUMBERED,
    "float": float,
    "generator": lambda: iter([1]),
    "holding": lambda name, *args: {"a": [BUILDERS[name](*args)]},
    "integer_keys": lambda: {1: "one"},
    "keyed_by": lambda name: {BUILDERS[name](): 1},
    "list_of": lambda name: [BUILDERS[name]()],
    "lone_surrogate": lambda: "x\ud800",
    "many_keys": lambda count: {f"key {number}": number for number in range(count)},
    "microseconds": lambda count: timedelta(microseconds=count),
    "none_key": lambda: {None: 1},
    "numbered_texts": lambda count: [f"flag {number}" for number in range(count)],
    "object": object,
    "power": pow,
    "repeat": lambda text, times: text * times,
    "set": lambda *items: set(items),
    "surrogate_pair": lambda: "\ud83d" + "\ude00",
    "text_with_nul": lambda: "a\x00b",
    "time": time.fromisoformat,
    "tuple": lambda *items: items,
    "uuid": UUID,
    "zeros": lambda count: [0] * count,
}


def load(name: str) -> list[Case]:
    cases: list[Case] = json.loads((DATA / name).read_text(encoding="utf-8"))
    return cases


def build(value: Any) -> Any:
    """The value itself, or what the builder that it names makes."""
    if isinstance(value, dict) and "build" in value:
        return BUILDERS[value["build"]](*value["with"])
    return value


def each_case(cases: list[Case], **wanted: bool) -> pytest.MarkDecorator:
    """Run a test with all cases that have (or have not) these entries, and with the long ones."""
    chosen = [case for case in cases if all((key in case) == has for key, has in wanted.items())]
    short = [case for case in chosen if "long" not in case]
    parameters = [pytest.param(short, id="short")]
    if long := [case for case in chosen if "long" in case]:
        marks = [pytest.mark.nightly, pytest.mark.timeout(600)]
        parameters.append(pytest.param(long, id="long", marks=marks))
    return pytest.mark.parametrize("cases", parameters)


EDGES = load("add_job_edges.json")
PAYLOADS = load("payloads.json")


@pytest.fixture(scope="module", params=["python", "node"])
def corpus(request: pytest.FixtureRequest, cluster: Cluster, schema: str) -> Iterator[TestDatabase]:
    """One database for all cases of an install: none of them depends on another."""
    template = "template" if request.param == "python" else "node_template"
    name = f"corpus_{request.param}"
    cluster.create_database(name, request.getfixturevalue(template))
    yield TestDatabase(name, cluster, schema)
    cluster.drop_database(name)


@pytest.fixture(scope="module")
def behind(corpus: TestDatabase) -> Iterator[Sql]:
    connection = Sql(corpus.dsn, corpus.schema)
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def blocking_client(corpus: TestDatabase) -> Iterator[sync.Client]:
    with sync.Client(corpus.dsn, schema=corpus.schema) as client:
        yield client


@pytest.fixture(params=["async", "blocking"])
async def call(
    request: pytest.FixtureRequest, corpus: TestDatabase, blocking_client: sync.Client
) -> AsyncIterator[Call]:
    """Calls a method of a client by its name: the test runs with both clients."""
    async with Client(corpus.dsn, schema=corpus.schema) as client:

        async def call_async(method: str, *args: Any, **given: Any) -> Any:
            return await getattr(client, method)(*args, **given)

        async def call_blocking(method: str, *args: Any, **given: Any) -> Any:
            return getattr(blocking_client, method)(*args, **given)

        yield call_async if request.param == "async" else call_blocking


@each_case(EDGES, refused=False)
@pytest.mark.feature("F28", "F30", "F31", "F32", "F33", "F34", "F35", "F36")
async def test_an_argument_within_its_limits_is_stored_and_read_back(call, cases, subtests):
    for case in cases:
        with subtests.test(case["name"]):
            given = arguments(case)

            job = await call("add_job", **given)

            assert_holds(job, given)
            assert await call("get_job", job.id) == job


@each_case(EDGES, refused=False, batch_refuses=False)
@pytest.mark.feature("F58")
async def test_an_argument_within_its_limits_is_stored_from_the_middle_of_a_batch(
    call, cases, subtests
):
    for case in cases:
        with subtests.test(case["name"]):
            given = arguments(case)

            jobs = await call("add_jobs", specs_around(given))

            assert [job.task_identifier for job in jobs] == [
                "before",
                given["identifier"],
                "after",
            ]
            assert_holds(jobs[1], given)
            assert [await call("get_job", job.id) for job in jobs] == jobs


@each_case(EDGES, refused=True)
@pytest.mark.feature("F239", "F240", "F241", "F242", "F243")
async def test_an_argument_beyond_its_limits_is_rejected_by_name_and_code(
    call, behind, cases, subtests
):
    async def add(case: Case) -> None:
        await call("add_job", **arguments(case))

    await assert_each_is_rejected(cases, "refused", add, behind, subtests)


@each_case(EDGES, refused=True)
@pytest.mark.feature("F239", "F240", "F241", "F242", "F243")
async def test_nothing_is_added_of_a_batch_with_one_bad_argument(call, behind, cases, subtests):
    async def add(case: Case) -> None:
        await call("add_jobs", specs_around(arguments(case)))

    await assert_each_is_rejected(cases, "refused", add, behind, subtests)


@each_case(EDGES, batch_refuses=True)
@pytest.mark.feature("F59")
async def test_nothing_is_added_of_a_batch_with_unsupported_options(call, behind, cases, subtests):
    async def add(case: Case) -> None:
        await call("add_jobs", specs_around(arguments(case)))

    await assert_each_is_rejected(cases, "batch_refuses", add, behind, subtests)


async def assert_each_is_rejected(
    cases: list[Case],
    entry: str,
    add: Callable[[Case], Awaitable[None]],
    behind: Sql,
    subtests: pytest.Subtests,
) -> None:
    """Check that nothing is added of each case, and that the error is the one of this entry."""
    for case in cases:
        with subtests.test(case["name"]):
            before = rows(behind)

            with pytest.raises(JobSpecError) as caught:
                await add(case)

            assert facts(caught.value) == case[entry]
            assert rows(behind) == before


@each_case(EDGES, database_agrees=True)
@pytest.mark.feature("F239", "F240", "F241", "F242", "F243")
async def test_values_that_only_the_database_rejects_raise_the_same_error(
    call, behind, cases, subtests, monkeypatch
):
    monkeypatch.setattr(JobSpec, "__post_init__", lambda spec: None)

    for case in cases:
        with subtests.test(case["name"]):
            before = rows(behind)

            with pytest.raises(JobSpecError) as caught:
                await call("add_job", **arguments(case))

            assert facts(caught.value) == case["refused"]
            assert caught.value.__cause__ is not None
            assert rows(behind) == before


@each_case(PAYLOADS, refused=False, raw=False)
@pytest.mark.feature("F29")
async def test_a_payload_that_json_can_represent_is_stored_and_read_back(call, cases, subtests):
    for case in cases:
        with subtests.test(case["name"]):
            payload = payload_of(case)

            job = await call("add_job", "payload", payload)
            batch = await call("add_jobs", specs_around({"payload": payload}))

            expected = case.get("reads", payload)
            for each in (job, batch[1]):
                found = await call("get_job", each.id)
                assert found == each
                assert spelled(found.payload) == spelled(expected)


@each_case(PAYLOADS, refused=True)
@pytest.mark.feature("F14")
async def test_a_payload_that_json_cannot_represent_is_rejected_alone_and_in_a_batch(
    call, behind, cases, subtests
):
    for case in cases:
        with subtests.test(case["name"]):
            payload = payload_of(case)
            before = rows(behind)

            with pytest.raises(JobSpecError) as alone:
                await call("add_job", "payload", payload)
            with pytest.raises(JobSpecError) as in_batch:
                await call("add_jobs", specs_around({"payload": payload}))

            assert facts(alone.value) == facts(in_batch.value) == case["refused"]
            assert rows(behind) == before


@each_case(PAYLOADS, raw=True)
@pytest.mark.feature("F2", "F26")
async def test_jobs_of_other_programs_can_be_read(call, behind, cases, subtests):
    for case in cases:
        with subtests.test(case["name"]):
            text = payload_of(case) if "build" in case else case["raw"]
            job_id = behind.value("select id from :schema.add_job('raw', $1::text::json)", text)

            job = await call("get_job", job_id)

            assert job.payload_text == text
            assert_readable(job, case)


def test_the_stored_cases_are_as_many_as_promised(capsys):
    outcomes = Counter(
        (kind, "refused" if "refused" in case else "stored")
        for kind, cases in (("arguments", EDGES), ("payloads", PAYLOADS))
        for case in cases
    )
    with capsys.disabled():
        sys.stdout.write(f"\nbad inputs: {len(EDGES)} arguments, {len(PAYLOADS)} payloads, ")
        sys.stdout.write(", ".join(f"{' '.join(key)} {n}" for key, n in outcomes.items()) + "\n")

    assert len(EDGES) >= 25
    assert len(PAYLOADS) >= 40


@pytest.mark.parametrize("cases", [EDGES, PAYLOADS], ids=["arguments", "payloads"])
def test_every_case_has_a_unique_name(cases):
    names = [case["name"] for case in cases]

    assert len(set(names)) == len(names)


def arguments(case: Case) -> dict[str, Any]:
    built = {name: build(value) for name, value in case["arguments"].items()}
    return {"identifier": "middle", **built}


def payload_of(case: Case) -> Any:
    return build(case) if "build" in case else case["value"]


def specs_around(given: dict[str, Any]) -> Iterator[JobSpec]:
    # A generator: the bad one is met after the call has begun.
    yield JobSpec("before")
    yield JobSpec(**{"identifier": "middle", **given})
    yield JobSpec("after", queue_name="after")


def rows(behind: Sql) -> list[Any]:
    tables = ("_private_jobs", "_private_job_queues", "_private_tasks")
    return [behind.value(f"select count(*) from :schema.{table}") for table in tables]


def facts(error: JobSpecError) -> dict[str, str]:
    return {"argument": error.argument, "code": error.code}


def spelled(value: Any) -> str:
    # Text tells 1 from 1.0 and from true, and 0 from -0, which == does not.
    return json.dumps(value)


def assert_holds(job: Job, given: dict[str, Any]) -> None:
    stored = {
        "identifier": job.task_identifier,
        "queue_name": job.queue_name,
        "job_key": job.key,
        "max_attempts": job.max_attempts,
        "priority": job.priority,
    }
    assert stored == {**stored, **{name: given[name] for name in given.keys() & stored.keys()}}
    if "flags" in given:
        assert job.flags == frozenset(given["flags"])
    if "run_at" in given:
        assert_due(job, given["run_at"])


def assert_due(job: Job, run_at: datetime | timedelta) -> None:
    if isinstance(run_at, datetime):
        assert job.run_at == run_at
    else:
        # Far from 1970 a float of seconds is a few microseconds coarse.
        assert abs(job.run_at - later(job.created_at, run_at)) < timedelta(microseconds=10)


def later(moment: datetime, delay: timedelta) -> datetime:
    """That much later, or the end of Python's calendar."""
    try:
        return moment + delay
    except OverflowError:
        return MAX_DATETIME if delay > timedelta() else MIN_DATETIME


def assert_readable(job: Job, case: Case) -> None:
    if "reads" in case:
        assert job.payload == case["reads"]
    elif "infinite" in case:
        assert job.payload == float("inf")
    else:
        # How much Python can read depends on its release; ValueError is all that it may raise.
        with suppress(ValueError):
            assert job.payload
