"""Settler: record how jobs ended. Awaited, fenced by the pool's id, and never given up."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from datetime import timedelta
from types import MappingProxyType

from graphile_worker.db.database import Answering
from graphile_worker.db.retry import delay_after, is_passing
from graphile_worker.error_text import ascii_text, error_text, message_text
from graphile_worker.events import PoolFatalError
from graphile_worker.failpoints import failpoint
from graphile_worker.hooks import Hooks
from graphile_worker.lease import Lease
from graphile_worker.retries import PartialFailure
from graphile_worker.sql.failures import sqlstate_of
from graphile_worker.sql.holding import (
    Failure,
    HeldJob,
    Return,
    announce_jobs,
    fail_jobs,
    finish_jobs,
    queues_to_free,
    return_jobs,
)
from graphile_worker.sql.query import Query
from graphile_worker.sql.workers import find_pool
from graphile_worker.worker.outcomes import (
    Completed,
    Failed,
    Interrupted,
    Outcome,
    Snoozed,
    Written,
)

# The next job must run soon after a database is back.
LONGEST_PAUSE = 0.6

# Class of SQLSTATE; and of a time beyond the calendar, a letter that the database's encoding lacks.
DATA_EXCEPTION = "22"
OUT_OF_RANGE = "22008"
UNTRANSLATABLE = "22P05"


NOTHING = nullcontext()


class Settler:
    """Writes outcomes one by one, each under the id that its job was taken with."""

    def __init__(
        self,
        database: Answering,
        lease: Lease,
        hooks: Hooks,
        *,
        held: Mapping[int, HeldJob] = MappingProxyType({}),
        fetching: asyncio.Lock | None = None,
        interrupted_delay: timedelta | None = None,
        again: bool = True,
    ) -> None:
        self._db = database
        self._lease = lease
        self._hooks = hooks
        self._held = held
        # Locked while the pool fetches.
        self._fetching = fetching or asyncio.Lock()
        self._interrupted_delay = interrupted_delay
        # In a caller's transaction nothing can be tried again.
        self._again = again

    async def settle(self, outcome: Outcome, *, attempt: int = 0) -> bool:
        """Write the outcome, however long that takes; False if the job was no longer ours.

        So many tries were made before.
        """
        if isinstance(outcome, Written):
            return True
        refused: Exception | None = None
        while True:
            try:
                held = await self._try(outcome, attempt, refused)
            except Exception as error:
                if not self._again:
                    raise
                self._complain(outcome, error)
                refused = error if _is_refusal(error) else refused
            else:
                if held is None:
                    return True
                return outcome.held.job.id in held or await self._got_through(outcome, attempt)
            await asyncio.sleep(delay_after(attempt, LONGEST_PAUSE))
            attempt += 1

    async def settle_all(self, outcomes: Sequence[Outcome]) -> list[bool]:
        """Write outcomes of one kind together; which jobs were still ours.

        If that fails they are written one by one: what is wrong with one of them, or was freed and
        taken again since, must not touch the others.
        """
        tried = 0
        if len({outcome.held.pool_id for outcome in outcomes}) == 1:
            tried = 1
            with suppress(Exception):
                held = await self._send(type(outcomes[0]), self._query_all(outcomes))
                return [outcome.held.job.id in held for outcome in outcomes]
        return [await self.settle(outcome, attempt=tried) for outcome in outcomes]

    async def hand_back(self, unstarted: Sequence[HeldJob]) -> None:
        """Return jobs that were fetched and not started, however long that takes."""
        for pool_id in {held.pool_id for held in unstarted}:
            jobs = [held for held in unstarted if held.pool_id == pool_id]
            attempt = 0
            while True:
                try:
                    async with self._when_tried(attempt):
                        jobs = [held for held in jobs if not self._was_taken_anew(held)]
                        if jobs:
                            query = self._return(pool_id, jobs, again=attempt > 0)
                            await self._send(Interrupted, query)
                    break
                except Exception:
                    if not self._again:
                        raise
                await asyncio.sleep(delay_after(attempt, LONGEST_PAUSE))
                attempt += 1

    async def offer(self, count: int) -> None:
        """Tell others that so many jobs can be taken; whoever does not hear it finds them too."""
        with suppress(Exception):
            await self._db.run(announce_jobs(count))

    async def _try(
        self, outcome: Outcome, attempt: int, refused: Exception | None
    ) -> set[int] | None:
        """Write the outcome; None if an earlier write succeeded and the job was claimed again."""
        async with self._when_tried(attempt):
            if attempt > 0 and self._was_taken_anew(outcome.held):
                return None
            query = self._query(outcome, attempt > 0, refused)
            return await self._send(type(outcome), query)

    def _when_tried(self, attempt: int) -> AbstractAsyncContextManager[object]:
        """Hold back a repeated write during a fetch; the first write is sent at once.

        If an earlier write succeeded, the fetch may claim the same job again, or another job of its
        queue. The repeated write would then release the wrong claim.
        """
        return self._fetching if attempt > 0 else NOTHING

    async def _send(self, kind: type[Outcome], query: Query[set[int]]) -> set[int]:
        """Write outcomes of one kind; the jobs that were still ours."""
        if kind is Completed:
            failpoint("completing")
        elif kind is Failed:
            failpoint("failing")
        else:
            failpoint("returning")
        written = await self._db.run(query)
        if kind is Completed:
            failpoint("completed")
        elif kind is Failed:
            failpoint("failed")
        return written

    def _was_taken_anew(self, held: HeldJob) -> bool:
        """Was a try heard that seemed to fail, so that this pool could take the job once more?"""
        return self._held.get(held.job.id, held) is not held

    def _return(self, pool_id: str, jobs: list[HeldJob], *, again: bool) -> Query[set[int]]:
        queues = queues_to_free(jobs, self._held)
        return return_jobs(pool_id, [Return(held.job) for held in jobs], queues, again=again)

    async def _got_through(self, outcome: Outcome, attempt: int) -> bool:
        """Not ours: did an earlier try that seemed to fail get through, or is the job lost?"""
        if attempt == 0 or not self._lease.is_registered:
            return attempt > 0
        try:
            # Whoever sweeps a pool says so there.
            return await self._db.run(find_pool(outcome.held.pool_id))
        except Exception:
            return True

    def _complain(self, outcome: Outcome, error: Exception) -> None:
        """Say what will not pass by itself: somebody may have to help, then the write lands."""
        if is_passing(error):
            return
        action = "completeJob" if isinstance(outcome, Completed) else "failJob"
        self._hooks.emit(PoolFatalError(pool_id=outcome.held.pool_id, error=error, action=action))

    def _query_all(self, outcomes: Sequence[Outcome]) -> Query[set[int]]:
        pool_id = outcomes[0].held.pool_id
        queues = queues_to_free([each.held for each in outcomes], self._held)
        if isinstance(outcomes[0], Completed):
            return finish_jobs(pool_id, [each.held.job.id for each in outcomes], queues)
        failures = [_failure(each) for each in outcomes if isinstance(each, Failed)]
        return fail_jobs(pool_id, failures, queues)

    def _query(self, outcome: Outcome, again: bool, refused: Exception | None) -> Query[set[int]]:
        """The write, without what PostgreSQL refused, such as a time beyond its calendar."""
        job, pool_id = outcome.held.job, outcome.held.pool_id
        queue = queues_to_free([outcome.held], self._held)
        match outcome:
            case Completed():
                return finish_jobs(pool_id, [job.id], queue, again=again)
            case Interrupted(_, when):
                delay = None if refused else when or self._interrupted_delay
                return return_jobs(pool_id, [Return(job, delay)], queue, again=again)
            case Failed() | Snoozed() if refused:
                failure = _refused(outcome, refused)
                return fail_jobs(pool_id, [failure], queue, again=again)
            case Failed():
                return fail_jobs(pool_id, [_failure(outcome)], queue, again=again)
            case Snoozed(_, when):
                return return_jobs(pool_id, [Return(job, when)], queue, again=again)
            case _:
                raise AssertionError("what is written already needs no write")


def _failure(failed: Failed) -> Failure:
    # Of a batch what the reference writes: the message of each item.
    is_of_items = isinstance(failed.error, PartialFailure)
    text = message_text(failed.error) if is_of_items else error_text(failed.error)
    return Failure(failed.held.job, text, failed.when, failed.give_up, failed.left)


def _refused(outcome: Failed | Snoozed, error: Exception) -> Failure:
    """The same without its message and its time, and without what is left if that may be it."""
    job, state = outcome.held.job, sqlstate_of(error)
    if not isinstance(outcome, Failed):
        return Failure(job, error_text(error))
    if state == UNTRANSLATABLE or isinstance(error, UnicodeEncodeError):
        message = ascii_text(_failure(outcome).message)
        return Failure(job, message, outcome.when, outcome.give_up)
    left = outcome.left if state == OUT_OF_RANGE else None
    return Failure(job, error_text(error), give_up=outcome.give_up, payload=left)


def _is_refusal(error: Exception) -> bool:
    # A pool of the caller's may speak an encoding that lacks a letter.
    return isinstance(error, UnicodeEncodeError) or (sqlstate_of(error) or "")[:2] == DATA_EXCEPTION
