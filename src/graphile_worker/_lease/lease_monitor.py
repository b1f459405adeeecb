"""LeaseMonitor: detects that a lease expires, before other pools recover its jobs."""

import asyncio
from collections.abc import Callable

from graphile_worker._lease.lease import Lease

# Seconds between two checks, because the lease may be renewed meanwhile.
CHECK_INTERVAL_SECONDS = 1.0
MIN_CHECK_INTERVAL_SECONDS = 0.05


class LeaseMonitor:
    """Calls `on_expired` each time the lease expires."""

    def __init__(self, lease: Lease, on_expired: Callable[[], None]) -> None:
        self._lease = lease
        self._on_expired = on_expired
        self._is_expired = False

    async def run(self) -> None:
        while True:
            self.check_once()
            await asyncio.sleep(self._compute_check_delay())

    def check_once(self) -> None:
        was_expired, self._is_expired = self._is_expired, self._lease.seconds_left <= 0
        if self._is_expired and not was_expired:
            self._on_expired()

    def _compute_check_delay(self) -> float:
        return max(
            MIN_CHECK_INTERVAL_SECONDS, min(CHECK_INTERVAL_SECONDS, self._lease.seconds_left)
        )
