"""ScanCursor: the position to scan for plain jobs from, while a full scan is slow."""

import math
import time

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
