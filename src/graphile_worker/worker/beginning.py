"""Beginning: where to look for plain jobs, while it takes long to look from the first one on."""

import math
import time

from graphile_worker.sql.holding import HeldJob, Place

# A look from the first job on is dear if it takes more seconds than these, and these for each job,
# so often in a row: once or twice may be because the machine is busy.
DEAR = 0.005
DEAR_FOR_EACH = 0.0001
DEAR_IN_A_ROW = 3

# Then the next waits for so many times as long, but for no more seconds than these.
REST = 10
LONGEST_REST = 3.0


class Beginning:
    """Remembers where the first jobs stood that a dear look found.

    Before them lies what is gone, and cannot be forgotten while somebody holds a snapshot. For a
    while that is believed without a look, so that a better job that came since is found that late.
    """

    def __init__(self) -> None:
        self.believed_until = -math.inf
        self._place: Place | None = None
        self._dear = 0

    @property
    def place(self) -> Place | None:
        """Where to begin; None: with the first job of all."""
        return self._place if time.monotonic() < self.believed_until else None

    def found(self, taken: list[HeldJob], *, seconds: float) -> None:
        """A look from the first job of all on took so long, and found these."""
        if seconds <= DEAR + DEAR_FOR_EACH * len(taken):
            self._dear = 0
            return
        self._dear += 1
        if self._dear >= DEAR_IN_A_ROW:
            self.move(taken)
            self.believed_until = time.monotonic() + min(REST * seconds, LONGEST_REST)

    def move(self, taken: list[HeldJob]) -> None:
        """These were the first from the place on."""
        self._place = _place(taken[0])


def _place(held: HeldJob) -> Place:
    return held.job.priority, held.job.run_at
