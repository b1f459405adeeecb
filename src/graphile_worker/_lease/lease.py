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
    """The lease of a pool. The heartbeat renews it from its own thread.

    Before the first renewal it does not expire, because no other pool knows this one.
    """

    def __init__(self, duration: timedelta | None = None, *, pool_id: str | None = None) -> None:
        self.pool_id = pool_id or generate_pool_id()
        # All ids of the pool so far.
        self.pool_ids = {self.pool_id}
        self.duration_seconds = math.inf if duration is None else duration.total_seconds()
        self._renewed_at = math.inf
        self._server_time: float | None = None
        self._stable_since = -math.inf
        self._is_lost = False

    @property
    def is_registered(self) -> bool:
        """Return whether this pool is in the registry, so that other pools may recover its jobs."""
        return self._renewed_at != math.inf

    @property
    def seconds_since_heartbeat(self) -> float:
        """Return the seconds since the last heartbeat that the database answered."""
        return time.monotonic() - self._renewed_at if self.is_registered else 0.0

    @property
    def can_claim(self) -> bool:
        """Return whether this pool may claim jobs."""
        return (
            not self._is_lost
            and self.seconds_since_heartbeat < self.duration_seconds * CLAIM_FRACTION
        )

    @property
    def can_start(self) -> bool:
        """Return whether this pool may start the jobs that it holds."""
        # The same as `seconds_left > 0`, but faster, because it is read for every job.
        return (
            not self._is_lost
            and time.monotonic() - self._renewed_at < self.duration_seconds * EXPIRY_FRACTION
        )

    @property
    def seconds_left(self) -> float:
        """Return the seconds until the jobs must stop, unless a heartbeat succeeds."""
        return self.duration_seconds * EXPIRY_FRACTION - self.seconds_since_heartbeat

    @property
    def is_stable(self) -> bool:
        """Return whether all heartbeats of the last lease duration succeeded.

        Otherwise the database was unreachable, perhaps for other pools too, which only seem dead.
        """
        return self.can_claim and time.monotonic() - self._stable_since > self.duration_seconds

    def was_renewed_since(self, timestamp: float) -> bool:
        """Return whether the database accepted a later heartbeat. True without heartbeats."""
        return not self.is_registered or self._renewed_at > timestamp

    def renew(self, sent_at: float, server_time: float | None = None) -> None:
        """Renew the lease after the database answered the heartbeat sent at this time."""
        if self.is_registered and self._is_interruption(sent_at, server_time):
            self._stable_since = sent_at
        self._renewed_at = sent_at
        self._server_time = server_time

    def mark_lost(self) -> None:
        """Claim and start no jobs until `rotate_id`, because another pool recovered the jobs."""
        self._is_lost = True

    def mark_unregistered(self) -> None:
        """Stop the expiry, because the pool is no longer in the registry."""
        self._renewed_at = math.inf

    def _is_interruption(self, sent_at: float, server_time: float | None) -> bool:
        """Return whether heartbeats were late, or the clock of the server jumped."""
        passed = sent_at - self._renewed_at
        if server_time is None or self._server_time is None:
            return passed > self.duration_seconds * CLAIM_FRACTION
        drift = abs(server_time - self._server_time - passed)
        return max(passed, drift) > self.duration_seconds * CLAIM_FRACTION

    def rotate_id(self, pool_id: str) -> None:
        """Use another pool id for further jobs, because locks of the old one may be lost."""
        self.pool_ids.add(pool_id)
        self.pool_id = pool_id
        self._is_lost = False


def generate_pool_id() -> str:
    return f"pypool-{secrets.token_hex(9)}"
