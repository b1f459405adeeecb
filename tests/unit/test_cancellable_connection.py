"""What waits for a server that may have vanished is given up in time, and its connection is cut."""

import asyncio
from contextlib import suppress

import pytest

from graphile_worker._db.cancellable_connection import CancelTimings, run_with_deadline

NEVER = 3600.0
SOON = 0.001


class Connection:
    """One on which a driver waits for an answer, even when it is canceled, until it is cut."""

    def __init__(self) -> None:
        self.is_cut = asyncio.Event()
        self.cancellations = 0

    def terminate(self) -> None:
        self.is_cut.set()
        # As asyncpg does where its pool has the connection back.
        raise LookupError("released")

    async def ask(self) -> None:
        while not self.is_cut.is_set():
            try:
                await self.is_cut.wait()
            except asyncio.CancelledError:
                self.cancellations += 1
        raise ConnectionError("cut")


async def test_what_answers_in_time_is_returned_and_what_it_raises_is_raised():
    async def answer() -> int:
        return 7

    async def fail() -> None:
        raise LookupError("boom")

    assert await run_with_deadline(answer(), NEVER, []) == 7
    with pytest.raises(LookupError, match="boom"):
        await run_with_deadline(fail(), NEVER, [])


async def test_what_does_not_answer_in_time_is_canceled_first_and_then_cut():
    connection = Connection()

    timings = CancelTimings(grace_seconds=SOON, retry_seconds=SOON)

    with pytest.raises(TimeoutError, match=r"within 0\.001 s"):
        await run_with_deadline(connection.ask(), SOON, [connection], timings=timings)

    assert connection.cancellations > 0
    assert connection.is_cut.is_set()


async def test_what_ends_when_it_is_canceled_is_not_cut():
    connection = Connection()

    with pytest.raises(TimeoutError):
        await run_with_deadline(
            asyncio.Event().wait(), SOON, [connection], timings=CancelTimings(grace_seconds=NEVER)
        )

    assert not connection.is_cut.is_set()


async def test_an_answer_that_comes_while_it_is_given_up_counts():
    async def answer_late() -> int:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return 7

    assert await run_with_deadline(answer_late(), SOON, []) == 7


async def test_a_caller_that_is_canceled_stays_canceled_and_the_connection_is_cut():
    connection = Connection()
    others: list[str] = []

    async def look_at_others() -> None:
        others.append("looked at")

    asking = run_with_deadline(
        connection.ask(),
        None,
        [connection],
        timings=CancelTimings(grace_seconds=0, retry_seconds=SOON),
        on_abandon=look_at_others,
    )
    call = asyncio.create_task(asking)
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait([call])

    assert call.cancelled()
    assert connection.is_cut.is_set()
    assert others == ["looked at"]
