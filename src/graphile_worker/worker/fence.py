"""Give up the jobs of a pool whose heartbeat is not heard, before others may take them."""

import asyncio
from collections.abc import Callable

from graphile_worker.lease import Lease

# Seconds between two looks: the lease is renewed all the time.
LOOK_EVERY = 1.0
LOOK_CLOSELY_EVERY = 0.05


class Fence:
    """Calls `on_lapse` once for each time that the lease is about to end."""

    def __init__(self, lease: Lease, on_lapse: Callable[[], None]) -> None:
        self._lease = lease
        self._on_lapse = on_lapse
        self._lapsed = False

    async def run(self) -> None:
        while True:
            self.look_once()
            await asyncio.sleep(self._next_look())

    def look_once(self) -> None:
        lapses = self._lease.seconds_left <= 0
        if lapses and not self._lapsed:
            self._on_lapse()
        self._lapsed = lapses

    def _next_look(self) -> float:
        return max(LOOK_CLOSELY_EVERY, min(LOOK_EVERY, self._lease.seconds_left))
