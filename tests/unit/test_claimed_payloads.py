"""PayloadBudget: the bytes that a pool loads, and payloads that are read separately."""

import asyncio
from typing import Any

import pytest

from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._sql.query import Query
from graphile_worker._worker.payload_budget import SMALL_PAYLOAD_BYTES, PayloadBudget
from graphile_worker.errors import JobLockLostError, PayloadTooLarge, WorkerStoppedError
from tests.support.fake_database import FakeDatabase
from tests.support.jobs import make_job

MAX_BYTES = 100_000


class Table(FakeDatabase):
    """A database with the payloads of jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[int, str] = {}

    def answer(self, query: Query[Any]) -> Any:
        assert query.statement == "get_payload"
        job_id: Any = query.args[0]
        return query.read([(self.texts[job_id],)] if job_id in self.texts else [])


class Scene:
    def __init__(self) -> None:
        self.table = Table()
        self.is_stopping = False
        database: Any = self.table
        self.payloads = PayloadBudget(
            database,
            max_bytes=MAX_BYTES,
            max_payload_bytes=MAX_BYTES,
            is_stopping=lambda: self.is_stopping,
            stop_check_interval_seconds=0.001,
        )

    def sent(self, job_id: int, size: int) -> ClaimedJob:
        """Return a job whose payload came with the fetch."""
        claimed = ClaimedJob(make_job(id=job_id, payload_text="x" * size, locked_by="p1"), None)
        self.payloads.add_claimed([claimed])
        return claimed

    def unread(self, job_id: int, size: int) -> ClaimedJob:
        """Return a job whose payload did not come with the fetch."""
        self.table.texts[job_id] = "x" * size
        job = make_job(id=job_id, payload_text="", locked_by="p1")
        claimed = ClaimedJob(job, None, unread_bytes=size)
        self.payloads.add_claimed([claimed])
        return claimed

    def share(self, limit: int) -> int:
        """Return how large a payload may be that a fetch of this many jobs brings."""
        with self.payloads.reserve_fetch(limit) as share:
            return share


@pytest.fixture
def it() -> Scene:
    return Scene()


async def let_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_fetch_brings_payloads_that_fit_in_the_remaining_budget(it):
    assert it.share(1) == MAX_BYTES
    assert it.share(10) == MAX_BYTES // 10

    claimed = it.sent(1, 60_000)
    assert it.share(1) == 40_000
    # Small payloads always come with the fetch.
    it.sent(2, 50_000)
    assert it.share(1) == SMALL_PAYLOAD_BYTES

    it.payloads.forget(claimed)
    assert it.share(1) == 50_000


async def test_a_payload_that_is_too_large_is_not_read(it):
    claimed = it.unread(1, MAX_BYTES + 1)

    with pytest.raises(PayloadTooLarge) as raised:
        await it.payloads.read(claimed)

    assert (raised.value.size, raised.value.limit) == (MAX_BYTES + 1, MAX_BYTES)
    assert str(raised.value) == (
        "the payload has 100,001 bytes and was not read: max_payload_bytes is 100,000. Keep the "
        "data elsewhere and put a reference into the payload, or raise max_payload_bytes."
    )
    assert it.table.queries == []


async def test_payloads_are_read_one_after_the_other_when_there_is_room(it):
    first, second, third = (it.unread(number, 60_000) for number in (1, 2, 3))

    await it.payloads.read(first)
    reading = [asyncio.create_task(it.payloads.read(each)) for each in (second, third)]
    await let_run()
    assert [each.job.payload_text[:1] for each in (first, second, third)] == ["x", "", ""]

    it.payloads.forget(first)
    await reading[0]
    assert not third.job.payload_text
    it.payloads.forget(second)
    await reading[1]
    it.payloads.forget(third)

    assert it.payloads.loaded_bytes == 0


async def test_a_payload_waits_for_what_the_fetch_under_way_may_bring(it):
    await it.payloads.read(it.unread(1, 30_000))
    second = it.unread(2, 30_000)

    with it.payloads.reserve_fetch(2) as share:
        reading = asyncio.create_task(it.payloads.read(second))
        await let_run()
        assert (share, second.job.payload_text) == (35_000, "")
        it.sent(3, 35_000)

    await reading
    assert it.payloads.loaded_bytes == 95_000


async def test_one_payload_by_itself_is_read_even_if_it_does_not_fit(it):
    # These jobs wait for a worker, and all workers may wait for room.
    it.sent(1, 99_000)

    await it.payloads.read(it.unread(2, MAX_BYTES))

    assert it.payloads.loaded_bytes == 199_000


async def test_what_waits_for_room_is_not_started_when_the_pool_stops(it):
    await it.payloads.read(it.unread(1, 60_000))
    reading = asyncio.create_task(it.payloads.read(it.unread(2, 60_000)))
    await let_run()

    it.is_stopping = True

    with pytest.raises(WorkerStoppedError):
        await reading
    assert it.payloads.loaded_bytes == 60_000


async def test_a_failed_read_frees_its_room(it):
    lost = it.unread(1, 60_000)
    del it.table.texts[1]

    with pytest.raises(JobLockLostError):
        await it.payloads.read(lost)

    assert it.payloads.loaded_bytes == 0
    it.payloads.forget(lost)
    assert it.payloads.loaded_bytes == 0
