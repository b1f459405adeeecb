"""Lease: the id under which a pool holds jobs, and until when no other pool may recover them."""

import math
import secrets
import time
from datetime import timedelta

# Fractions of the lease duration without a heartbeat: after the first the pool claims no more jobs,
# after the second it stops its jobs, so that they have ended when other pools may recover them.
CLAIM_FRACTION = 1 / 2
EXPIRY_FRACTION = 5 / 6


class Lease:
    """The heartbeat renews it, from its own thread; claimer and start guard read it.

    Before it is renewed for the first time it does not expire: no other pool knows this one.
    """

    def __init__(self, duration: timedelta | None = None, *, pool_id: str | None = None) -> None:
        self.pool_id = pool_id or generate_pool_id()
        # All ids that it had.
        self.pool_ids = {self.pool_id}
        self.duration_seconds = math.inf if duration is None else duration.total_seconds()
        self._renewed_at = math.inf
        self._server_time: float | None = None
        self._stable_since = -math.inf
        self._is_lost = False

    @property
    def is_registered(self) -> bool:
        """Is this pool in the registry, so that other pools recover its jobs without heartbeats?"""
        return self._renewed_at != math.inf

    @property
    def seconds_since_heartbeat(self) -> float:
        """Seconds since the last heartbeat that the database answered."""
        return time.monotonic() - self._renewed_at if self.is_registered else 0.0

    @property
    def can_claim(self) -> bool:
        """May this pool claim jobs?"""
        return (
            not self._is_lost
            and self.seconds_since_heartbeat < self.duration_seconds * CLAIM_FRACTION
        )

    @property
    def can_start(self) -> bool:
        """May this pool start the jobs that it holds?"""
        # `seconds_left > 0`, written out because it is read for every job.
        return (
            not self._is_lost
            and time.monotonic() - self._renewed_at < self.duration_seconds * EXPIRY_FRACTION
        )

    @property
    def seconds_left(self) -> float:
        """Seconds after which the jobs must stop, unless a heartbeat succeeds."""
        return self.duration_seconds * EXPIRY_FRACTION - self.seconds_since_heartbeat

    @property
    def is_stable(self) -> bool:
        """Did all heartbeats of the last lease duration succeed?

        Otherwise the database was unreachable, perhaps for other pools too, which only seem dead.
        """
        return self.can_claim and time.monotonic() - self._stable_since > self.duration_seconds

    def was_renewed_since(self, timestamp: float) -> bool:
        """Did the database accept a heartbeat that was sent later? True if none are sent."""
        return not self.is_registered or self._renewed_at > timestamp

    def renew(self, sent_at: float, server_time: float | None = None) -> None:
        """The database answered the heartbeat that was sent at this time."""
        if self.is_registered and self._is_interruption(sent_at, server_time):
            self._stable_since = sent_at
        self._renewed_at = sent_at
        self._server_time = server_time

    def mark_lost(self) -> None:
        """Another pool recovered the jobs: claim and start nothing until `rotate_id`."""
        self._is_lost = True

    def mark_unregistered(self) -> None:
        """The pool is not in the registry any more."""
        self._renewed_at = math.inf

    def _is_interruption(self, sent_at: float, server_time: float | None) -> bool:
        """Was there no heartbeat for long, or did the clock of the server jump?"""
        passed = sent_at - self._renewed_at
        if server_time is None or self._server_time is None:
            return passed > self.duration_seconds * CLAIM_FRACTION
        drift = abs(server_time - self._server_time - passed)
        return max(passed, drift) > self.duration_seconds * CLAIM_FRACTION

    def rotate_id(self, pool_id: str) -> None:
        """Claim further jobs under another id; locks of the old id may be lost."""
        self.pool_ids.add(pool_id)
        self.pool_id = pool_id
        self._is_lost = False


def generate_pool_id() -> str:
    return f"pypool-{secrets.token_hex(9)}"
