"""Beginning: where to look for plain jobs, while it takes long to look from the first one on."""

import math
import time

from graphile_worker._sql.queries.claim import ClaimedJob, JobPosition

# A look from the first job on is dear if the server searches for more seconds than these, and these
# for each job, this often in a row: once or twice may be because the machine is busy.
SLOW_SCAN_SECONDS = 0.005
SLOW_SCAN_SECONDS_PER_JOB = 0.0001
MIN_SLOW_SCANS = 3

# After a dear look the next one waits for this many times as long, but at most for these seconds.
SCAN_DELAY_FACTOR = 10
MAX_SCAN_DELAY_SECONDS = 3.0


class ScanCursor:
    """Remembers where the first jobs stood that a dear look found.

    Before them lies what is gone, and cannot be forgotten while a transaction holds a snapshot. For
    a while that is believed without a look, so that a better job that came since is found that
    late, while there are other jobs to run. If there are none, the pool has nothing else to do:
    then it looks, and rests only for as long as a look takes.
    """

    def __init__(self) -> None:
        self.valid_until = -math.inf
        self.next_full_scan_at = -math.inf
        self._position: JobPosition | None = None
        self._slow_scans = 0
        self._scan_seconds = 0.0

    @property
    def position(self) -> JobPosition | None:
        """Where to begin; None: with the first job of all."""
        return self._position if time.monotonic() < self.valid_until else None

    def record_scan(self, claimed_jobs: list[ClaimedJob]) -> None:
        """Note what a look from the first job of all on found, and how long that took.

        The time is the server's. On this side of the connection a look also takes a round trip,
        which says nothing about the table.
        """
        seconds = claimed_jobs[0].search_seconds
        if seconds <= SLOW_SCAN_SECONDS + SLOW_SCAN_SECONDS_PER_JOB * len(claimed_jobs):
            self._slow_scans = 0
            return
        self._slow_scans += 1
        self._scan_seconds = seconds
        if self._slow_scans >= MIN_SLOW_SCANS:
            self.advance(claimed_jobs)
            rest = min(SCAN_DELAY_FACTOR * seconds, MAX_SCAN_DELAY_SECONDS)
            self.valid_until = time.monotonic() + rest

    def advance(self, claimed_jobs: list[ClaimedJob]) -> None:
        """These were the first from the place on."""
        self._position = _get_position(claimed_jobs[0])

    def delay_full_scan(self) -> None:
        """From the place on there was nothing, so all was looked at."""
        self.next_full_scan_at = time.monotonic() + min(self._scan_seconds, MAX_SCAN_DELAY_SECONDS)


def _get_position(claimed: ClaimedJob) -> JobPosition:
    return claimed.job.priority, claimed.job.run_at
