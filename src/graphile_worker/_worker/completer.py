"""Completer: writes the outcomes of jobs, fenced by the id of the pool, until that succeeds."""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import cast

from graphile_worker._db.database import QueryRunner
from graphile_worker._db.retry import compute_backoff, is_data_error, is_temporary
from graphile_worker._lease.lease import Lease
from graphile_worker._metrics.definitions import WRITE_RETRIES, WriteKind
from graphile_worker._metrics.recorder import Recorder
from graphile_worker._sql.queries.claim import (
    ClaimedJob,
    FailedAttempt,
    ReleasedJob,
    complete_and_keep_jobs,
    complete_claimed_jobs,
    fail_and_keep_jobs,
    fail_claimed_jobs,
    find_blocked_jobs,
    find_releasable_queues,
    notify_jobs,
    release_claimed_jobs,
)
from graphile_worker._sql.queries.history import KeptRun
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
from graphile_worker._support.lazy_dataclass import LazyKeywordDataclass
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

# After this many permanent rejections, the job fails with the database's message instead. From then
# on both are tried alternately, with longer pauses, and reported rarely. If the database rejects
# heartbeats too, for example because it has no transaction ids left, the outcome is not at fault:
# then it is retried until the lease expires.
REJECTIONS_BEFORE_FAILURE = 10

# A class of SQLSTATE, of missing objects and permissions.
ACCESS_RULE_VIOLATION = "42"

# A timestamp out of range, and a character that the encoding of the database does not have.
OUT_OF_RANGE = "22008"
UNTRANSLATABLE = "22P05"

NO_LOCK = nullcontext()

# Other outcomes release their job.
WRITE_KINDS: Mapping[type[Outcome], WriteKind] = {
    Completed: WriteKind.COMPLETE,
    Failed: WriteKind.FAIL,
}


class CompletionTimings(LazyKeywordDataclass):
    """Intervals between the tries to write an outcome."""

    max_backoff_seconds: float = 0.6
    """The next job must run soon after a database outage."""
    max_rejected_backoff_seconds: float = 5.0
    """The maximum after many rejections."""
    report_interval_seconds: float = 60.0
    """Between two reports of a rejection."""


DEFAULT_TIMINGS = CompletionTimings()


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
        timings: CompletionTimings = DEFAULT_TIMINGS,
        recorder: Recorder | None = None,
    ) -> None:
        self._db = database
        self._recorder = recorder
        self._timings = timings
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
        """Write the outcome, and retry until that succeeds.

        Args:
            outcome: How the job ended.
            attempt: The number of earlier writes.
            is_uncertain: Whether the task's own transaction may have completed the job already.

        Returns:
            The outcome that was written: a failure if the database keeps rejecting `outcome`.
            None if this pool no longer holds the job.
        """
        if isinstance(outcome, CompletedInTransaction):
            return outcome
        # An uncertain commit counts as a write whose answer was lost.
        attempt += is_uncertain
        rejections = _Rejections(outcome, self._lease, self._timings)
        while True:
            candidate = rejections.choose_outcome()
            try:
                owned_ids = await self._try_write(candidate, attempt, rejections.data_error)
            except Exception as error:
                if not self._can_retry:
                    raise
                self._report_rejection(rejections, error)
            else:
                if owned_ids is None or outcome.claimed.job.id in owned_ids:
                    return candidate
                if is_uncertain and await self._was_completed_in_transaction(outcome):
                    return CompletedInTransaction(outcome.claimed, getattr(outcome, "error", None))
                earlier_writes = attempt - is_uncertain
                return candidate if await self._was_written(outcome, earlier_writes) else None
            await asyncio.sleep(compute_backoff(attempt, rejections.max_backoff_seconds))
            attempt += 1

    async def complete_all(self, outcomes: Sequence[Outcome]) -> list[Outcome | None] | None:
        """Write outcomes of one kind and one pool id together, if that succeeds at once.

        Returns:
            The outcomes, with None for each job that this pool no longer holds. None instead of a
            list if one was rejected or the answer was lost: write them one by one.
        """
        try:
            owned_ids = await self._send(type(outcomes[0]), self._build_batch_query(outcomes))
        except Exception:
            if not self._can_retry:
                raise
            return None
        return [outcome if outcome.claimed.job.id in owned_ids else None for outcome in outcomes]

    async def complete_unless_rejected(self, outcome: Outcome) -> Outcome | None:
        """Write one of several outcomes, and retry only while the database is unreachable.

        Raises:
            Exception: The database rejected it, and the other outcomes should not wait for it.
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
            await asyncio.sleep(compute_backoff(attempt, self._timings.max_backoff_seconds))
            attempt += 1

    async def try_release(
        self, unstarted: Sequence[ClaimedJob], *, attempt: int = 0
    ) -> list[ClaimedJob]:
        """Release jobs that did not start, and return those whose release failed or must wait.

        Pass these again after a backoff, so that no job waits for the locked row of another one.

        Args:
            unstarted: The jobs.
            attempt: The number of earlier writes.
        """
        left: list[ClaimedJob] = []
        for pool_id, jobs in _group_by_pool_id(unstarted).items():
            try:
                blocked = await self._find_blocked(jobs)
                async with self._get_retry_lock(attempt):
                    jobs = [each for each in jobs if not self._was_reclaimed(each)]
                    free = [each for each in jobs if each.job.id not in blocked]
                    if free:
                        query = self._build_release_query(pool_id, free, is_retry=attempt > 0)
                        await self._send(Interrupted, query)
                left += [each for each in jobs if each.job.id in blocked]
            except Exception:
                if not self._can_retry:
                    raise
                left += jobs
        return left

    async def wait_for_retry(self, attempt: int) -> None:
        """Wait for the backoff after a write that failed or must wait."""
        await asyncio.sleep(compute_backoff(attempt, self._timings.max_backoff_seconds))

    async def notify_jobs_available(self, count: int) -> None:
        """Notify other workers of ready jobs. Without it they find the jobs by polling."""
        # In a transaction of the caller, a statement that fails would abort that transaction.
        if self._can_retry:
            with suppress(Exception):
                await self._db.run(notify_jobs(count))

    async def _try_write(
        self, outcome: Outcome, attempt: int, rejection: Exception | None
    ) -> set[int] | None:
        """Write the outcome and return the ids of jobs that this pool still held.

        Returns None if an earlier write released the job and this pool claimed it again under the
        same id.
        """
        if attempt > 0 and self._recorder is not None:
            self._recorder.add(WRITE_RETRIES)
        if attempt > 0:
            await self._check_blocked([outcome.claimed])
        async with self._get_retry_lock(attempt):
            if attempt > 0 and self._was_reclaimed(outcome.claimed):
                if isinstance(outcome, Completed):
                    return set()
                claimed_again = self._claimed_jobs[outcome.claimed.job.id]
                # Under another id, the job may also have been recovered before it was claimed.
                return None if claimed_again.pool_id == outcome.claimed.pool_id else set()
            query = self._build_query(outcome, attempt > 0, rejection)
            return await self._send(type(outcome), query)

    async def _check_blocked(self, claimed_jobs: Sequence[ClaimedJob]) -> None:
        """Raise TimeoutError if a write would wait for the transaction of another session.

        Fetches wait for a repeated write, so one row could keep the pool from all other jobs.
        """
        if blocked := await self._find_blocked(claimed_jobs):
            raise TimeoutError(f"another session has locked the row of job {min(blocked)}")

    async def _find_blocked(self, claimed_jobs: Sequence[ClaimedJob]) -> set[int]:
        """Return the jobs of one pool id whose rows another session has locked."""
        if not self._can_retry:
            # All writes are in the transaction of the caller.
            return set()
        ids = [each.job.id for each in claimed_jobs]
        return await self._db.run(find_blocked_jobs(claimed_jobs[0].pool_id, ids))

    def _get_retry_lock(self, attempt: int) -> AbstractAsyncContextManager[object]:
        """Return the lock that delays a repeated write until the end of a fetch.

        If an earlier write succeeded, the fetch may claim the same job again, or another job of its
        queue. The repeated write would then release the wrong claim. The first write does not wait.
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
        if self._recorder is None:
            written = await self._db.run(query)
        else:
            started_at = time.monotonic()
            written = await self._db.run(query)
            self._recorder.record_write(
                WRITE_KINDS.get(kind, WriteKind.RELEASE), time.monotonic() - started_at
            )
        if kind is Completed:
            failpoint("completed")
        elif kind is Failed:
            failpoint("failed")
        return written

    def _was_reclaimed(self, claimed: ClaimedJob) -> bool:
        """Return whether this pool claimed the job again, after an earlier write or a recovery."""
        return self._claimed_jobs.get(claimed.job.id, claimed) is not claimed

    def _build_release_query(
        self, pool_id: str, jobs: list[ClaimedJob], *, is_retry: bool
    ) -> Query[set[int]]:
        queues = find_releasable_queues(jobs, self._claimed_jobs)
        return release_claimed_jobs(
            pool_id, [ReleasedJob(each.job) for each in jobs], queues, is_retry=is_retry
        )

    async def _was_written(self, outcome: Outcome, attempt: int) -> bool:
        """Return whether an earlier write succeeded. If not, the lock of the job is lost."""
        if isinstance(outcome, Completed) and self._was_reclaimed(outcome.claimed):
            # A completion deletes the job, so nothing could have claimed it again.
            return False
        return attempt > 0 and await self._is_pool_alive(outcome)

    async def _is_pool_alive(self, outcome: Outcome) -> bool:
        """Return whether no other worker has recovered the jobs of the pool that ran this one."""
        if not self._lease.is_registered:
            return True
        checks = 0
        while True:
            try:
                # Recovery deletes the row of a pool in the registry.
                return await self._db.run(is_pool_alive(outcome.claimed.pool_id))
            except Exception as error:
                # After an outage, each connection may have to be replaced.
                if not self._can_retry or not is_temporary(error):
                    return True
            await asyncio.sleep(compute_backoff(checks, self._timings.max_backoff_seconds))
            checks += 1

    async def _was_completed_in_transaction(self, outcome: Outcome) -> bool:
        """Return whether the task's own transaction, whose answer was lost, completed the job."""
        attempt = 0
        while True:
            try:
                is_deleted = await self._db.run(get_job(outcome.claimed.job.id)) is None
                break
            except Exception as error:
                if not self._can_retry or not is_temporary(error):
                    return True
            await asyncio.sleep(compute_backoff(attempt, self._timings.max_backoff_seconds))
            attempt += 1
        # Another worker may have recovered, run and completed it.
        return is_deleted and await self._is_pool_alive(outcome)

    def _report_rejection(self, rejections: "_Rejections", error: Exception) -> None:
        """Report a permanent rejection at once, and repeat that once a minute."""
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
        ended = cast("Sequence[Completed] | Sequence[Failed]", outcomes)
        runs = [each.kept for each in ended if each.kept is not None]
        if isinstance(outcomes[0], Completed):
            ids = [each.claimed.job.id for each in outcomes]
            return _build_completion(pool_id, ids, queues, runs)
        failures = [_build_failed_attempt(each) for each in outcomes if isinstance(each, Failed)]
        return _build_failure(pool_id, failures, queues, runs)

    def _build_query(
        self, outcome: Outcome, is_retry: bool, rejection: Exception | None
    ) -> Query[set[int]]:
        """Build the write without data that PostgreSQL rejects, for example a time out of range."""
        job, pool_id = outcome.claimed.job, outcome.claimed.pool_id
        queue = find_releasable_queues([outcome.claimed], self._claimed_jobs)
        kept = _get_kept_run(outcome)
        runs = [] if kept is None else [kept]
        match outcome:
            case Completed():
                return _build_completion(pool_id, [job.id], queue, runs, is_retry=is_retry)
            case Interrupted(_, when):
                delay = None if rejection else when or self._interrupted_delay
                return release_claimed_jobs(
                    pool_id, [ReleasedJob(job, delay)], queue, is_retry=is_retry
                )
            case Failed() | Snoozed() if rejection and not _is_rejection_failure(outcome):
                failure = _build_fallback_attempt(outcome, rejection)
                return _build_failure(pool_id, [failure], queue, runs, is_retry=is_retry)
            case Failed():
                return _build_failure(
                    pool_id, [_build_failed_attempt(outcome)], queue, runs, is_retry=is_retry
                )
            case Snoozed(_, when):
                return release_claimed_jobs(
                    pool_id, [ReleasedJob(job, when)], queue, is_retry=is_retry
                )
            case _:
                raise AssertionError("the outcome is written already")


def _group_by_pool_id(claimed_jobs: Sequence[ClaimedJob]) -> dict[str, list[ClaimedJob]]:
    groups: dict[str, list[ClaimedJob]] = {}
    for each in claimed_jobs:
        groups.setdefault(each.pool_id, []).append(each)
    return groups


class _Rejections:
    """Counts how often the database rejected an outcome, and chooses what to write instead."""

    def __init__(self, outcome: Outcome, lease: Lease, timings: CompletionTimings) -> None:
        self.outcome = outcome
        self._lease = lease
        self._timings = timings
        # An error in the data of the outcome: the next write leaves that data out.
        self.data_error: Exception | None = None
        self._rejection_count = 0
        self._first_rejected_at = math.inf
        self._is_outcome_at_fault = False
        self._last_error: Exception | None = None
        self._reported_at = -math.inf

    @property
    def max_backoff_seconds(self) -> float:
        too_many = self._rejection_count > 2 * REJECTIONS_BEFORE_FAILURE
        if too_many:
            return self._timings.max_rejected_backoff_seconds
        return self._timings.max_backoff_seconds

    def add(self, error: Exception) -> bool:
        """Count a rejection, and return whether to report it."""
        now = time.monotonic()
        self._rejection_count += 1
        self._first_rejected_at = min(self._first_rejected_at, now)
        # The database accepted a heartbeat meanwhile, so this outcome is at fault.
        self._is_outcome_at_fault |= self._lease.was_renewed_since(self._first_rejected_at)
        self._last_error = error
        if is_data_error(error):
            self.data_error = error
        if now - self._reported_at < self._timings.report_interval_seconds:
            return False
        self._reported_at = now
        return True

    def choose_outcome(self) -> Outcome:
        """Return the outcome, or what to write instead of it after rejections.

        A result that the database cannot store fails the job at once. After many rejections, every
        other write is a failure. The tables of the history may be at fault, too: from half of these
        rejections on, nothing is kept of the run, and later in every other pair of writes.
        """
        if self._rejection_count == 0:
            return self.outcome
        kept = _get_kept_run(self.outcome)
        if kept is not None and kept.result is not None and self.data_error is not None:
            self.outcome = self._build_failure(self.data_error, is_permanent=True)
        chosen = self._choose_kind()
        if kept is None or not self._is_history_suspect:
            return chosen
        assert isinstance(chosen, Completed | Failed | Snoozed)
        return replace(chosen, kept=None)

    @property
    def _is_history_suspect(self) -> bool:
        count = self._rejection_count
        # A missing table or permission, or the database accepted a heartbeat meanwhile.
        if not self._is_outcome_at_fault and not _is_access_error(self._last_error):
            return False
        if count < REJECTIONS_BEFORE_FAILURE:
            return count >= REJECTIONS_BEFORE_FAILURE // 2
        return count % 4 < 2

    def _choose_kind(self) -> Outcome:
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
        is_permanent = isinstance(self.outcome, Failed) and self.outcome.is_permanent
        return self._build_failure(self._last_error, is_permanent=is_permanent)

    def _build_failure(self, cause: Exception, *, is_permanent: bool) -> Failed:
        error = OutcomeRefused(
            f"the database rejected the outcome of the job: {format_error_line(cause)}"
        )
        error.__cause__ = cause
        kept = _get_kept_run(self.outcome)
        if kept is not None:
            kept = replace(kept, result=None)
        return Failed(self.outcome.claimed, error, is_permanent=is_permanent, kept=kept)


def _get_kept_run(outcome: Outcome) -> KeptRun | None:
    # A tuple, because isinstance is several times faster with it than with a union.
    return outcome.kept if isinstance(outcome, (Completed, Failed, Snoozed)) else None


def _build_completion(
    pool_id: str,
    job_ids: list[int],
    queue_ids: list[int],
    runs: Sequence[KeptRun],
    *,
    is_retry: bool = False,
) -> Query[set[int]]:
    if not runs:
        return complete_claimed_jobs(pool_id, job_ids, queue_ids, is_retry=is_retry)
    return complete_and_keep_jobs(pool_id, job_ids, queue_ids, runs, is_retry=is_retry)


def _build_failure(
    pool_id: str,
    failures: Sequence[FailedAttempt],
    queue_ids: list[int],
    runs: Sequence[KeptRun],
    *,
    is_retry: bool = False,
) -> Query[set[int]]:
    if not runs:
        return fail_claimed_jobs(pool_id, failures, queue_ids, is_retry=is_retry)
    return fail_and_keep_jobs(pool_id, failures, queue_ids, runs, is_retry=is_retry)


def _build_failed_attempt(failed: Failed) -> FailedAttempt:
    # Graphile Worker for Node stores only the messages of the items of a batch.
    is_batch = isinstance(failed.error, PartialFailure)
    text = format_error_message(failed.error) if is_batch else format_error(failed.error)
    kind = type(failed.error)
    return FailedAttempt(
        failed.claimed.job,
        text,
        failed.when,
        failed.is_permanent,
        failed.remaining_payload,
        f"{kind.__module__}.{kind.__qualname__}",
    )


def _is_rejection_failure(outcome: Outcome) -> bool:
    return isinstance(outcome, Failed) and isinstance(outcome.error, OutcomeRefused)


def _build_fallback_attempt(outcome: Failed | Snoozed, error: Exception) -> FailedAttempt:
    """Build the failure without its message and time, and without a payload at fault."""
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


def _is_access_error(error: Exception | None) -> bool:
    return error is not None and (get_sqlstate(error) or "")[:2] == ACCESS_RULE_VIOLATION


def _is_unreachable(error: Exception) -> bool:
    """Return whether the server is unreachable, so that no outcome can be written."""
    state = get_sqlstate(error)
    if state is None:
        return is_temporary(error) and not isinstance(error, TimeoutError)
    return state[:2] == CONNECTION_EXCEPTION or state in UNREACHABLE
