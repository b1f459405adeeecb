"""Give up the jobs of a pool whose heartbeat is not heard, before others may take them."""

import asyncio
from collections.abc import Callable

from graphile_worker._lease.lease import Lease

# Seconds between two looks: the lease is renewed all the time.
CHECK_INTERVAL_SECONDS = 1.0
MIN_CHECK_INTERVAL_SECONDS = 0.05


class LeaseMonitor:
    """Calls `on_expired` once for each time that the lease is about to end."""

    def __init__(self, lease: Lease, on_expired: Callable[[], None]) -> None:
        self._lease = lease
        self._on_expired = on_expired
        self._is_expired = False

    async def run(self) -> None:
        while True:
            self.check_once()
            await asyncio.sleep(self._compute_check_delay())

    def check_once(self) -> None:
        lapses = self._lease.seconds_left <= 0
        if lapses and not self._is_expired:
            self._on_expired()
        self._is_expired = lapses

    def _compute_check_delay(self) -> float:
        return max(
            MIN_CHECK_INTERVAL_SECONDS, min(CHECK_INTERVAL_SECONDS, self._lease.seconds_left)
        )
