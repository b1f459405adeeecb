"""Settler: record how jobs ended. Awaited, fenced by the pool's id, and never given up."""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from datetime import timedelta
from types import MappingProxyType

from graphile_worker.db.database import Answering
from graphile_worker.db.retry import delay_after, is_passing
from graphile_worker.error_text import ascii_text, error_line, error_text, message_text
from graphile_worker.errors import OutcomeRefused
from graphile_worker.events import PoolFatalError
from graphile_worker.failpoints import failpoint
from graphile_worker.hooks import Hooks
from graphile_worker.lease import Lease
from graphile_worker.retries import PartialFailure
from graphile_worker.sql.failures import CONNECTION_EXCEPTION, UNREACHABLE, sqlstate_of
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
from graphile_worker.sql.jobs import get_job
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

# After this many rejections that do not pass by themselves, the job fails with the database's
# message instead. From then on both are tried in turn, with longer pauses, and reported rarely. A
# database that rejects heartbeats too, for example because it has no transaction ids left, says
# nothing about the outcome: then the outcome is retried until the lease expires.
REFUSALS_BEFORE_FAILURE = 10
LONGEST_PAUSE_WHEN_REFUSED = 5.0
REPORT_EVERY_SECONDS = 60.0

# A class of SQLSTATE; codes of a time beyond the calendar and of a letter that the encoding of the
# database lacks.
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

    async def settle(
        self, outcome: Outcome, *, attempt: int = 0, is_uncertain: bool = False
    ) -> Outcome | None:
        """Write the outcome, however long that takes.

        Args:
            outcome: how the job ended.
            attempt: how many tries were made before.
            is_uncertain: the task's own transaction may have ended the job already.

        Returns:
            What was written: a failure if the database keeps rejecting the outcome. None if this
            pool no longer holds the job.
        """
        if isinstance(outcome, Written):
            return outcome
        # An uncertain commit is like a try whose answer got lost.
        attempt += is_uncertain
        refusals = _Refusals(outcome, self._lease)
        while True:
            writing = refusals.next_write()
            try:
                held = await self._try(writing, attempt, refusals.of_data)
            except Exception as error:
                if not self._again:
                    raise
                self._count(refusals, error)
            else:
                if held is None or outcome.held.job.id in held:
                    return writing
                if is_uncertain and await self._is_gone(outcome):
                    return Written(outcome.held, getattr(outcome, "error", None))
                tries = attempt - is_uncertain
                return writing if await self._got_through(outcome, tries) else None
            await asyncio.sleep(delay_after(attempt, refusals.longest_pause))
            attempt += 1

    async def settle_all(self, outcomes: Sequence[Outcome]) -> list[Outcome | None] | None:
        """Write outcomes of one kind and one pool id together, if that succeeds at once.

        Returns:
            What was written, with None for each job that this pool no longer holds; or None if they
            have to be written one by one, because something is wrong with one of them or an answer
            got lost.
        """
        try:
            held = await self._send(type(outcomes[0]), self._query_all(outcomes))
        except Exception:
            if not self._again:
                raise
            return None
        return [outcome if outcome.held.job.id in held else None for outcome in outcomes]

    async def settle_unless_refused(self, outcome: Outcome) -> Outcome | None:
        """Write one of several outcomes; wait only while the database cannot be reached.

        Raises:
            Exception: what the database answered. This outcome needs more time than the others
                should wait for.
        """
        attempt = 1
        while True:
            try:
                held = await self._try(outcome, attempt, None)
            except Exception as error:
                if not self._again or not _is_unreachable(error):
                    raise
            else:
                if held is None or outcome.held.job.id in held:
                    return outcome
                return outcome if await self._got_through(outcome, attempt) else None
            await asyncio.sleep(delay_after(attempt, LONGEST_PAUSE))
            attempt += 1

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

    async def _is_gone(self, outcome: Outcome) -> bool:
        """Has the task's own transaction deleted the job?"""
        try:
            return await self._db.run(get_job(outcome.held.job.id)) is None
        except Exception:
            return True

    def _count(self, refusals: "_Refusals", error: Exception) -> None:
        """Report what does not pass by itself, at once and then once a minute."""
        if is_passing(error) or not refusals.add(error):
            return
        outcome = refusals.outcome
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
            case Failed() | Snoozed() if refused and not _is_replaced(outcome):
                failure = _refused(outcome, refused)
                return fail_jobs(pool_id, [failure], queue, again=again)
            case Failed():
                return fail_jobs(pool_id, [_failure(outcome)], queue, again=again)
            case Snoozed(_, when):
                return return_jobs(pool_id, [Return(job, when)], queue, again=again)
            case _:
                raise AssertionError("what is written already needs no write")


class _Refusals:
    """How often the database rejected an outcome, and what is written instead."""

    def __init__(self, outcome: Outcome, lease: Lease) -> None:
        self.outcome = outcome
        self._lease = lease
        # An error in the data of the outcome: the next try leaves that data out.
        self.of_data: Exception | None = None
        self._count = 0
        self._first_at = math.inf
        self._is_proven = False
        self._last: Exception | None = None
        self._reported_at = -math.inf

    @property
    def longest_pause(self) -> float:
        too_many = self._count > 2 * REFUSALS_BEFORE_FAILURE
        return LONGEST_PAUSE_WHEN_REFUSED if too_many else LONGEST_PAUSE

    def add(self, error: Exception) -> bool:
        """Count a rejection; should it be reported?"""
        now = time.monotonic()
        self._count += 1
        self._first_at = min(self._first_at, now)
        # Rejected after the database accepted a heartbeat: then it is about this outcome.
        self._is_proven |= self._lease.was_renewed_since(self._first_at)
        self._last = error
        if _is_of_data(error):
            self.of_data = error
        if now - self._reported_at < REPORT_EVERY_SECONDS:
            return False
        self._reported_at = now
        return True

    def next_write(self) -> Outcome:
        """The outcome; after many rejections, in every other try, a failure that names the last."""
        is_over = self._count >= REFUSALS_BEFORE_FAILURE and self._count % 2 == 0
        if not is_over or self._last is None or isinstance(self.outcome, Interrupted | Written):
            return self.outcome
        if not self._is_proven:
            return self.outcome
        error = OutcomeRefused(
            f"the database rejected the outcome of the job: {error_line(self._last)}"
        )
        error.__cause__ = self._last
        give_up = isinstance(self.outcome, Failed) and self.outcome.give_up
        return Failed(self.outcome.held, error, give_up=give_up)


def _failure(failed: Failed) -> Failure:
    # Of a batch what the reference writes: the message of each item.
    is_of_items = isinstance(failed.error, PartialFailure)
    text = message_text(failed.error) if is_of_items else error_text(failed.error)
    return Failure(failed.held.job, text, failed.when, failed.give_up, failed.left)


def _is_replaced(outcome: Outcome) -> bool:
    return isinstance(outcome, Failed) and isinstance(outcome.error, OutcomeRefused)


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


def _is_unreachable(error: Exception) -> bool:
    """Does the server not answer at all? Then no other outcome can be written either."""
    state = sqlstate_of(error)
    if state is None:
        return is_passing(error) and not isinstance(error, TimeoutError)
    return state[:2] == CONNECTION_EXCEPTION or state in UNREACHABLE


def _is_of_data(error: Exception) -> bool:
    # A pool of the caller's may speak an encoding that lacks a letter.
    return isinstance(error, UnicodeEncodeError) or (sqlstate_of(error) or "")[:2] == DATA_EXCEPTION
