"""Under which id a pool holds its jobs, and until when nobody may take them from it."""

import math
import secrets
import time
from datetime import timedelta

# Parts of a lease that pass without a heartbeat before its pool takes no more jobs, and before it
# gives up those that it has, so that they are given up when others may take them.
CLAIM_FRACTION = 1 / 2
EXPIRY_FRACTION = 5 / 6


class Lease:
    """Renewed by the heartbeat, from a thread of its own; read by whoever takes jobs.

    Until it is renewed for the first time it does not end: nobody else knows of this pool.
    """

    def __init__(self, duration: timedelta | None = None, *, pool_id: str | None = None) -> None:
        self.pool_id = pool_id or generate_pool_id()
        # All that it ever had.
        self.pool_ids = {self.pool_id}
        self.duration_seconds = math.inf if duration is None else duration.total_seconds()
        self._renewed_at = math.inf
        self._server_time: float | None = None
        self._stable_since = -math.inf
        self._is_lost = False

    @property
    def is_registered(self) -> bool:
        """Do others know this pool, and take its jobs if it falls silent?"""
        return self._renewed_at != math.inf

    @property
    def seconds_since_heartbeat(self) -> float:
        """Seconds since the heartbeat that was heard last."""
        return time.monotonic() - self._renewed_at if self.is_registered else 0.0

    @property
    def can_claim(self) -> bool:
        """May this pool take jobs?"""
        return (
            not self._is_lost
            and self.seconds_since_heartbeat < self.duration_seconds * CLAIM_FRACTION
        )

    @property
    def can_start(self) -> bool:
        """May it start those that it has?"""
        # As `seconds_left` says, and written out, because it is asked for every job.
        return (
            not self._is_lost
            and time.monotonic() - self._renewed_at < self.duration_seconds * EXPIRY_FRACTION
        )

    @property
    def seconds_left(self) -> float:
        """After so long, if no heartbeat is heard, the jobs must be given up."""
        return self.duration_seconds * EXPIRY_FRACTION - self.seconds_since_heartbeat

    @property
    def is_stable(self) -> bool:
        """Did all heartbeats of a whole lease arrive, or is there none that did not?

        Otherwise the database was out of reach, perhaps for others too, who only seem dead.
        """
        return self.can_claim and time.monotonic() - self._stable_since > self.duration_seconds

    def was_renewed_since(self, timestamp: float) -> bool:
        """Did the database accept a heartbeat that was sent later? True if none are sent."""
        return not self.is_registered or self._renewed_at > timestamp

    def renew(self, sent_at: float, server_time: float | None = None) -> None:
        """A heartbeat was heard that was sent at this time; the database's lease ends later."""
        if self.is_registered and self._is_interruption(sent_at, server_time):
            self._stable_since = sent_at
        self._renewed_at = sent_at
        self._server_time = server_time

    def mark_lost(self) -> None:
        """Others took this pool for dead: nothing goes on until it has another id."""
        self._is_lost = True

    def mark_unregistered(self) -> None:
        """Nobody knows this pool any more."""
        self._renewed_at = math.inf

    def _is_interruption(self, sent_at: float, server_time: float | None) -> bool:
        """Was nothing heard for long, or has somebody moved the server's clock?"""
        passed = sent_at - self._renewed_at
        if server_time is None or self._server_time is None:
            return passed > self.duration_seconds * CLAIM_FRACTION
        drift = abs(server_time - self._server_time - passed)
        return max(passed, drift) > self.duration_seconds * CLAIM_FRACTION

    def rotate_id(self, pool_id: str) -> None:
        """Take further jobs under another id: what was locked under the old one may be lost."""
        self.pool_ids.add(pool_id)
        self.pool_id = pool_id
        self._is_lost = False


def generate_pool_id() -> str:
    return f"pypool-{secrets.token_hex(9)}"
