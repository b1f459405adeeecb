"""ScanCursor and BlockedJobsCursor: where to search for jobs while a scan of all jobs is slow."""

import math
import time
from collections.abc import Iterable

from graphile_worker._sql.queries.claim import ClaimedJob, JobPosition

# A scan from the first job is slow if the server takes more seconds than these, plus these for each
# job, this often in a row: once or twice the machine may be busy.
SLOW_SCAN_SECONDS = 0.005
SLOW_SCAN_SECONDS_PER_JOB = 0.0001
MIN_SLOW_SCANS = 3

# After a slow scan the next one waits for this many times its duration, but at most these seconds.
SCAN_DELAY_FACTOR = 10
MAX_SCAN_DELAY_SECONDS = 3.0


class ScanCursor:
    """Remembers the position of the first jobs that a slow scan found.

    Dead rows precede them, which PostgreSQL cannot remove while a transaction has a snapshot. For a
    while scans begin at the position. While there are jobs to run, a job of a better priority that
    is added meanwhile is found later. If there are none, the pool scans all jobs, and pauses for
    the duration of a scan.
    """

    def __init__(self, slow_scan_seconds: float = SLOW_SCAN_SECONDS) -> None:
        self._slow_scan_seconds = slow_scan_seconds
        self.valid_until = -math.inf
        self.next_full_scan_at = -math.inf
        self._position: JobPosition | None = None
        self._slow_scans = 0
        self._scan_seconds = 0.0

    @property
    def position(self) -> JobPosition | None:
        """Return where to begin a scan, or None for the first job."""
        return self._position if time.monotonic() < self.valid_until else None

    def record_scan(self, claimed_jobs: list[ClaimedJob]) -> None:
        """Record the jobs that a scan from the first job found, and how long the server took.

        The time does not include the round trip, which does not depend on the table.
        """
        seconds = claimed_jobs[0].search_seconds
        if seconds <= self._slow_scan_seconds + SLOW_SCAN_SECONDS_PER_JOB * len(claimed_jobs):
            self._slow_scans = 0
            return
        self._slow_scans += 1
        self._scan_seconds = seconds
        if self._slow_scans >= MIN_SLOW_SCANS:
            self.advance(claimed_jobs)
            delay = min(SCAN_DELAY_FACTOR * seconds, MAX_SCAN_DELAY_SECONDS)
            self.valid_until = time.monotonic() + delay

    def advance(self, claimed_jobs: list[ClaimedJob]) -> None:
        """Set the position to the first of these jobs."""
        self._position = claimed_jobs[0].job.priority, claimed_jobs[0].job.run_at

    def delay_full_scan(self) -> None:
        """Delay the next full scan for the duration of a scan."""
        self.next_full_scan_at = time.monotonic() + min(self._scan_seconds, MAX_SCAN_DELAY_SECONDS)


class BlockedJobsCursor:
    """Remembers the position of the first ready job behind jobs that cannot be claimed.

    Those have a forbidden flag, or wait for a named queue that is locked. A full scan reads all of
    them, so for a while fetches search around the position instead. A job of the ones between, that
    can be claimed meanwhile, is found later.

    A full scan is due after ten times the duration of the last one. After a short result it is due
    after that duration, doubled after each full scan with a short result.
    """

    def __init__(self) -> None:
        self._position: JobPosition | None = None
        # The tasks and the forbidden flags of the scan. With others, other jobs are blocked.
        self._scope: object = None
        self._scanned_at = -math.inf
        self._scan_seconds = 0.0
        self._short_delay_factor = 1
        self._valid_until = -math.inf

    def get_position(
        self, tasks: Iterable[int], skip_flags: list[str] | None
    ) -> JobPosition | None:
        """Return where to search, or None if a full scan is due."""
        if self._position is None or time.monotonic() >= self._valid_until:
            return None
        return self._position if self._scope == (set(tasks), skip_flags) else None

    def record_short_result(self) -> float:
        """Record that a search around the position found few jobs, and return when to scan all."""
        self._valid_until = min(self._valid_until, self._compute_due(self._short_delay_factor))
        return self._valid_until

    def record_scan(
        self,
        claimed_jobs: list[ClaimedJob],
        tasks: Iterable[int],
        skip_flags: list[str] | None,
        *,
        is_short: bool,
    ) -> None:
        """Record the jobs that a full scan found. If it found none, the position stays."""
        if claimed_jobs:
            first = next((each for each in claimed_jobs if each.is_behind_soonest), None)
            self._position = None if first is None else (first.job.priority, first.job.run_at)
            self._scope = set(tasks), skip_flags
            self._scan_seconds = claimed_jobs[0].search_seconds
        self._scanned_at = time.monotonic()
        self._valid_until = self._compute_due(SCAN_DELAY_FACTOR)
        self._short_delay_factor = (
            min(self._short_delay_factor * 2, SCAN_DELAY_FACTOR) if is_short else 1
        )

    def _compute_due(self, delay_factor: int) -> float:
        return self._scanned_at + min(delay_factor * self._scan_seconds, MAX_SCAN_DELAY_SECONDS)
