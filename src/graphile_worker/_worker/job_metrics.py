"""Count the jobs that a worker claims and ends, in the cells of a recorder.

By direct calls, because building an event for each job would cost more than the count.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence

from graphile_worker._metrics.definitions import JOB_BUCKETS, JobResult
from graphile_worker._metrics.recorder import RESULT_INDEX, Recorder, TaskCell
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._worker.outcomes import (
    Completed,
    CompletedInTransaction,
    Failed,
    Interrupted,
    Outcome,
)
from graphile_worker.jobs import Job


def record_claimed_jobs(recorder: Recorder, claimed_jobs: Sequence[ClaimedJob]) -> None:
    """Record how long the jobs of one fetch waited, by the database's clock."""
    locked_at = float(claimed_jobs[0].job._locked_at or "nan")
    last_task = last_run_at = ""
    bucket, seconds = 0, 0.0
    wait = recorder.get_cell(claimed_jobs[0].job.task_identifier).wait
    for claimed in claimed_jobs:
        job = claimed.job
        # A retry waits for its backoff.
        if job.attempts != 1:
            continue
        if job.task_identifier != last_task:
            last_task = job.task_identifier
            wait = recorder.get_cell(last_task).wait
        # Jobs that were added together have the same time.
        if job._run_at != last_run_at:
            last_run_at = job._run_at
            seconds = locked_at - float(last_run_at)
            # The time may be infinite, and by another clock with --use-local-time.
            if not 0.0 < seconds < math.inf:
                seconds = 0.0
            bucket = bisect_left(JOB_BUCKETS, seconds)
        wait.counts[bucket] += 1
        wait.sum += seconds


def record_job_ended(
    cell: TaskCell, job: Job, outcome: Outcome, is_still_owned: bool, seconds: float | None
) -> None:
    """Count a job after its outcome was written. Without `seconds` its run time is unknown."""
    cell.finished[RESULT_INDEX[_get_result(job, outcome, is_still_owned)]] += 1
    if seconds is not None:
        cell.duration.observe(seconds)


def _get_result(job: Job, outcome: Outcome, is_still_owned: bool) -> JobResult:
    if not is_still_owned:
        return JobResult.LOST
    match outcome:
        case Completed() | CompletedInTransaction():
            return JobResult.SUCCESS
        case Failed():
            is_last = outcome.is_permanent or job.attempts >= job.max_attempts
            return JobResult.FAILED if is_last else JobResult.RETRY
        case Interrupted():
            return JobResult.INTERRUPTED
        case _:
            return JobResult.SNOOZED
