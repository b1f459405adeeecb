"""Completer: writes the outcomes of jobs, fenced by the id of the pool, until that succeeds."""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from datetime import timedelta
from types import MappingProxyType

from graphile_worker._db.database import QueryRunner
from graphile_worker._db.retry import compute_backoff, is_temporary
from graphile_worker._lease.lease import Lease
from graphile_worker._sql.queries.claim import (
    ClaimedJob,
    FailedAttempt,
    ReleasedJob,
    complete_claimed_jobs,
    fail_claimed_jobs,
    find_releasable_queues,
    notify_jobs,
    release_claimed_jobs,
)
from graphile_worker._sql.queries.jobs import get_job
from graphile_worker._sql.queries.workers import is_pool_alive
from graphile_worker._sql.query import Query
from graphile_worker._sql.sqlstate import CONNECTION_EXCEPTION, UNREACHABLE, get_sqlstate
from graphile_worker._support.error_format import (
    escape_non_ascii,
    format_error,
    format_error_line,
    format_error_message,
)
from graphile_worker._support.failpoints import failpoint
from graphile_worker._worker.outcomes import (
    Completed,
    CompletedInTransaction,
    Failed,
    Interrupted,
    Outcome,
    Snoozed,
)
from graphile_worker.errors import OutcomeRefused
from graphile_worker.events import PoolFatalError
from graphile_worker.hooks import Hooks
from graphile_worker.retries import PartialFailure

# The next job must run soon after a database outage.
MAX_BACKOFF_SECONDS = 0.6

# After this many permanent rejections, the job fails with the database's message instead. From then
# on both are tried alternately, with longer pauses, and reported rarely. If the database rejects
# heartbeats too, for example because it has no transaction ids left, the outcome is not at fault:
# then it is retried until the lease expires.
REJECTIONS_BEFORE_FAILURE = 10
MAX_REJECTED_BACKOFF_SECONDS = 5.0
REPORT_INTERVAL_SECONDS = 60.0

# A class of SQLSTATE, and two codes: a timestamp out of range, and a character that the encoding of
# the database does not have.
DATA_EXCEPTION = "22"
OUT_OF_RANGE = "22008"
UNTRANSLATABLE = "22P05"


NO_LOCK = nullcontext()


class Completer:
    """Writes each outcome under the pool id that its job was claimed with."""

    def __init__(
        self,
        database: QueryRunner,
        lease: Lease,
        hooks: Hooks,
        *,
        claimed_jobs: Mapping[int, ClaimedJob] = MappingProxyType({}),
        fetch_lock: asyncio.Lock | None = None,
        interrupted_delay: timedelta | None = None,
        can_retry: bool = True,
    ) -> None:
        self._db = database
        self._lease = lease
        self._hooks = hooks
        self._claimed_jobs = claimed_jobs
        # Locked while the pool fetches.
        self._fetch_lock = fetch_lock or asyncio.Lock()
        self._interrupted_delay = interrupted_delay
        # In a caller's transaction nothing can be retried.
        self._can_retry = can_retry

    async def complete(
        self, outcome: Outcome, *, attempt: int = 0, is_uncertain: bool = False
    ) -> Outcome | None:
        """Write the outcome, however long that takes.

        Args:
            outcome: how the job ended.
            attempt: the number of earlier tries.
            is_uncertain: the task's own transaction may have completed the job already.

        Returns:
            What was written: a failure if the database keeps rejecting the outcome. None if this
            pool no longer holds the job.
        """
        if isinstance(outcome, CompletedInTransaction):
            return outcome
        # An uncertain commit is like a try whose answer was lost.
        attempt += is_uncertain
        rejections = _Rejections(outcome, self._lease)
        while True:
            writing = rejections.choose_outcome()
            try:
                owned_ids = await self._try_write(writing, attempt, rejections.data_error)
            except Exception as error:
                if not self._can_retry:
                    raise
                self._report_rejection(rejections, error)
            else:
                if owned_ids is None or outcome.claimed.job.id in owned_ids:
                    return writing
                if is_uncertain and await self._is_job_deleted(outcome):
                    return CompletedInTransaction(outcome.claimed, getattr(outcome, "error", None))
                tries = attempt - is_uncertain
                return writing if await self._was_written(outcome, tries) else None
            await asyncio.sleep(compute_backoff(attempt, rejections.max_backoff_seconds))
            attempt += 1

    async def complete_all(self, outcomes: Sequence[Outcome]) -> list[Outcome | None] | None:
        """Write outcomes of one kind and one pool id together, if that succeeds at once.

        Returns:
            What was written, with None for each job that this pool no longer holds; or None if they
            have to be written one by one, because one was rejected or the answer was lost.
        """
        try:
            owned_ids = await self._send(type(outcomes[0]), self._build_batch_query(outcomes))
        except Exception:
            if not self._can_retry:
                raise
            return None
        return [outcome if outcome.claimed.job.id in owned_ids else None for outcome in outcomes]

    async def complete_unless_rejected(self, outcome: Outcome) -> Outcome | None:
        """Write one of several outcomes; wait only while the database cannot be reached.

        Raises:
            Exception: the database rejected it, and the other outcomes should not wait for it.
        """
        attempt = 1
        while True:
            try:
                owned_ids = await self._try_write(outcome, attempt, None)
            except Exception as error:
                if not self._can_retry or not _is_unreachable(error):
                    raise
            else:
                if owned_ids is None or outcome.claimed.job.id in owned_ids:
                    return outcome
                return outcome if await self._was_written(outcome, attempt) else None
            await asyncio.sleep(compute_backoff(attempt, MAX_BACKOFF_SECONDS))
            attempt += 1

    async def release(self, unstarted: Sequence[ClaimedJob]) -> None:
        """Release jobs that did not start, however long that takes."""
        for pool_id in {each.pool_id for each in unstarted}:
            jobs = [each for each in unstarted if each.pool_id == pool_id]
            attempt = 0
            while True:
                try:
                    async with self._get_retry_lock(attempt):
                        jobs = [each for each in jobs if not self._was_reclaimed(each)]
                        if jobs:
                            query = self._build_release_query(pool_id, jobs, is_retry=attempt > 0)
                            await self._send(Interrupted, query)
                    break
                except Exception:
                    if not self._can_retry:
                        raise
                await asyncio.sleep(compute_backoff(attempt, MAX_BACKOFF_SECONDS))
                attempt += 1

    async def notify_jobs_available(self, count: int) -> None:
        """Notify other workers of ready jobs, which they would find by polling, too."""
        with suppress(Exception):
            await self._db.run(notify_jobs(count))

    async def _try_write(
        self, outcome: Outcome, attempt: int, rejection: Exception | None
    ) -> set[int] | None:
        """Write the outcome; None if an earlier write succeeded and the job was claimed again."""
        async with self._get_retry_lock(attempt):
            if attempt > 0 and self._was_reclaimed(outcome.claimed):
                return None
            query = self._build_query(outcome, attempt > 0, rejection)
            return await self._send(type(outcome), query)

    def _get_retry_lock(self, attempt: int) -> AbstractAsyncContextManager[object]:
        """Delay a repeated write until the end of a fetch; the first write is sent at once.

        If an earlier write succeeded, the fetch may claim the same job again, or another job of its
        queue. The repeated write would then release the wrong claim.
        """
        return self._fetch_lock if attempt > 0 else NO_LOCK

    async def _send(self, kind: type[Outcome], query: Query[set[int]]) -> set[int]:
        """Write outcomes of one kind, and return the ids of jobs that this pool still held."""
        if kind is Completed:
            failpoint("completing")
        elif kind is Failed:
            failpoint("failing")
        else:
            failpoint("releasing")
        written = await self._db.run(query)
        if kind is Completed:
            failpoint("completed")
        elif kind is Failed:
            failpoint("failed")
        return written

    def _was_reclaimed(self, claimed: ClaimedJob) -> bool:
        """Has this pool claimed the job again, because an earlier try succeeded?"""
        return self._claimed_jobs.get(claimed.job.id, claimed) is not claimed

    def _build_release_query(
        self, pool_id: str, jobs: list[ClaimedJob], *, is_retry: bool
    ) -> Query[set[int]]:
        queues = find_releasable_queues(jobs, self._claimed_jobs)
        return release_claimed_jobs(
            pool_id, [ReleasedJob(each.job) for each in jobs], queues, is_retry=is_retry
        )

    async def _was_written(self, outcome: Outcome, attempt: int) -> bool:
        """This pool does not hold the job: did an earlier try succeed, or is the lock lost?"""
        if attempt == 0 or not self._lease.is_registered:
            return attempt > 0
        try:
            # A pool whose jobs were recovered is not in the registry any more.
            return await self._db.run(is_pool_alive(outcome.claimed.pool_id))
        except Exception:
            return True

    async def _is_job_deleted(self, outcome: Outcome) -> bool:
        """Has the task's own transaction deleted the job?"""
        attempt = 0
        while True:
            try:
                return await self._db.run(get_job(outcome.claimed.job.id)) is None
            except Exception as error:
                if not self._can_retry or not is_temporary(error):
                    return True
            await asyncio.sleep(compute_backoff(attempt, MAX_BACKOFF_SECONDS))
            attempt += 1

    def _report_rejection(self, rejections: "_Rejections", error: Exception) -> None:
        """Report a permanent rejection, at once and then once a minute."""
        if is_temporary(error) or not rejections.add(error):
            return
        outcome = rejections.outcome
        action = "completeJob" if isinstance(outcome, Completed) else "failJob"
        self._hooks.emit(
            PoolFatalError(pool_id=outcome.claimed.pool_id, error=error, action=action)
        )

    def _build_batch_query(self, outcomes: Sequence[Outcome]) -> Query[set[int]]:
        pool_id = outcomes[0].claimed.pool_id
        queues = find_releasable_queues([each.claimed for each in outcomes], self._claimed_jobs)
        if isinstance(outcomes[0], Completed):
            return complete_claimed_jobs(
                pool_id, [each.claimed.job.id for each in outcomes], queues
            )
        failures = [_build_failed_attempt(each) for each in outcomes if isinstance(each, Failed)]
        return fail_claimed_jobs(pool_id, failures, queues)

    def _build_query(
        self, outcome: Outcome, is_retry: bool, rejection: Exception | None
    ) -> Query[set[int]]:
        """The write without the data that PostgreSQL rejected, for example a time out of range."""
        job, pool_id = outcome.claimed.job, outcome.claimed.pool_id
        queue = find_releasable_queues([outcome.claimed], self._claimed_jobs)
        match outcome:
            case Completed():
                return complete_claimed_jobs(pool_id, [job.id], queue, is_retry=is_retry)
            case Interrupted(_, when):
                delay = None if rejection else when or self._interrupted_delay
                return release_claimed_jobs(
                    pool_id, [ReleasedJob(job, delay)], queue, is_retry=is_retry
                )
            case Failed() | Snoozed() if rejection and not _is_rejection_failure(outcome):
                failure = _build_fallback_attempt(outcome, rejection)
                return fail_claimed_jobs(pool_id, [failure], queue, is_retry=is_retry)
            case Failed():
                return fail_claimed_jobs(
                    pool_id, [_build_failed_attempt(outcome)], queue, is_retry=is_retry
                )
            case Snoozed(_, when):
                return release_claimed_jobs(
                    pool_id, [ReleasedJob(job, when)], queue, is_retry=is_retry
                )
            case _:
                raise AssertionError("the outcome is written already")


class _Rejections:
    """How often the database rejected an outcome, and what is written instead."""

    def __init__(self, outcome: Outcome, lease: Lease) -> None:
        self.outcome = outcome
        self._lease = lease
        # An error in the data of the outcome: the next try leaves that data out.
        self.data_error: Exception | None = None
        self._rejection_count = 0
        self._first_rejected_at = math.inf
        self._is_outcome_at_fault = False
        self._last_error: Exception | None = None
        self._reported_at = -math.inf

    @property
    def max_backoff_seconds(self) -> float:
        too_many = self._rejection_count > 2 * REJECTIONS_BEFORE_FAILURE
        return MAX_REJECTED_BACKOFF_SECONDS if too_many else MAX_BACKOFF_SECONDS

    def add(self, error: Exception) -> bool:
        """Count a rejection; should it be reported?"""
        now = time.monotonic()
        self._rejection_count += 1
        self._first_rejected_at = min(self._first_rejected_at, now)
        # The database accepted a heartbeat meanwhile, so this outcome is at fault.
        self._is_outcome_at_fault |= self._lease.was_renewed_since(self._first_rejected_at)
        self._last_error = error
        if _is_data_error(error):
            self.data_error = error
        if now - self._reported_at < REPORT_INTERVAL_SECONDS:
            return False
        self._reported_at = now
        return True

    def choose_outcome(self) -> Outcome:
        """The outcome; after many rejections, in every other try, a failure with the last one."""
        is_over = (
            self._rejection_count >= REJECTIONS_BEFORE_FAILURE and self._rejection_count % 2 == 0
        )
        if (
            not is_over
            or self._last_error is None
            or isinstance(self.outcome, Interrupted | CompletedInTransaction)
        ):
            return self.outcome
        if not self._is_outcome_at_fault:
            return self.outcome
        error = OutcomeRefused(
            f"the database rejected the outcome of the job: {format_error_line(self._last_error)}"
        )
        error.__cause__ = self._last_error
        is_permanent = isinstance(self.outcome, Failed) and self.outcome.is_permanent
        return Failed(self.outcome.claimed, error, is_permanent=is_permanent)


def _build_failed_attempt(failed: Failed) -> FailedAttempt:
    # For a batch the messages of its items, as Graphile Worker for Node writes them.
    is_batch = isinstance(failed.error, PartialFailure)
    text = format_error_message(failed.error) if is_batch else format_error(failed.error)
    return FailedAttempt(
        failed.claimed.job, text, failed.when, failed.is_permanent, failed.remaining_payload
    )


def _is_rejection_failure(outcome: Outcome) -> bool:
    return isinstance(outcome, Failed) and isinstance(outcome.error, OutcomeRefused)


def _build_fallback_attempt(outcome: Failed | Snoozed, error: Exception) -> FailedAttempt:
    """The failure without its message and time, and without the payload if that may be rejected."""
    job, state = outcome.claimed.job, get_sqlstate(error)
    if not isinstance(outcome, Failed):
        return FailedAttempt(job, format_error(error))
    if state == UNTRANSLATABLE or isinstance(error, UnicodeEncodeError):
        message = escape_non_ascii(_build_failed_attempt(outcome).message)
        return FailedAttempt(job, message, outcome.when, outcome.is_permanent)
    payload = outcome.remaining_payload if state == OUT_OF_RANGE else None
    return FailedAttempt(
        job, format_error(error), is_permanent=outcome.is_permanent, payload=payload
    )


def _is_unreachable(error: Exception) -> bool:
    """Is the server unreachable, so that no other outcome can be written either?"""
    state = get_sqlstate(error)
    if state is None:
        return is_temporary(error) and not isinstance(error, TimeoutError)
    return state[:2] == CONNECTION_EXCEPTION or state in UNREACHABLE


def _is_data_error(error: Exception) -> bool:
    # The client encoding of a caller's pool may not have a character.
    return (
        isinstance(error, UnicodeEncodeError) or (get_sqlstate(error) or "")[:2] == DATA_EXCEPTION
    )
