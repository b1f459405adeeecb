"""Beginning: where to look for plain jobs, while it takes long to look from the first one on."""

import math
import time

from graphile_worker.sql.holding import HeldJob, Place

# A look from the first job on is dear if the server searches for more seconds than these, and these
# for each job, this often in a row: once or twice may be because the machine is busy.
DEAR_SECONDS = 0.005
DEAR_SECONDS_PER_JOB = 0.0001
DEAR_IN_A_ROW = 3

# After a dear look the next one waits for this many times as long, but at most for these seconds.
REST_FACTOR = 10
LONGEST_REST_SECONDS = 3.0


class Beginning:
    """Remembers where the first jobs stood that a dear look found.

    Before them lies what is gone, and cannot be forgotten while a transaction holds a snapshot. For
    a while that is believed without a look, so that a better job that came since is found that
    late, while there are other jobs to run. If there are none, the pool has nothing else to do:
    then it looks, and rests only for as long as a look takes.
    """

    def __init__(self) -> None:
        self.believed_until = -math.inf
        self.rests_until = -math.inf
        self._place: Place | None = None
        self._dear = 0
        self._seconds = 0.0

    @property
    def place(self) -> Place | None:
        """Where to begin; None: with the first job of all."""
        return self._place if time.monotonic() < self.believed_until else None

    def found(self, taken: list[HeldJob]) -> None:
        """Note what a look from the first job of all on found, and how long that took.

        The time is the server's. On this side of the connection a look also takes a round trip,
        which says nothing about the table.
        """
        seconds = taken[0].search_seconds
        if seconds <= DEAR_SECONDS + DEAR_SECONDS_PER_JOB * len(taken):
            self._dear = 0
            return
        self._dear += 1
        self._seconds = seconds
        if self._dear >= DEAR_IN_A_ROW:
            self.move(taken)
            rest = min(REST_FACTOR * seconds, LONGEST_REST_SECONDS)
            self.believed_until = time.monotonic() + rest

    def move(self, taken: list[HeldJob]) -> None:
        """These were the first from the place on."""
        self._place = _place(taken[0])

    def rest(self) -> None:
        """From the place on there was nothing, so all was looked at."""
        self.rests_until = time.monotonic() + min(self._seconds, LONGEST_REST_SECONDS)


def _place(held: HeldJob) -> Place:
    return held.job.priority, held.job.run_at
