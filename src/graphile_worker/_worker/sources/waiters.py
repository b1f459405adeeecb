"""Workers that wait for a job, and what is said about them."""

import asyncio
from collections.abc import Iterable

from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker.events import GetJobEmpty, GetJobErrored, GetJobStarted
from graphile_worker.hooks import Hooks


class Waiter:
    """A worker that waits for a job; None tells it that there will be no more."""

    __slots__ = ("_future", "worker_id")

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self._future: asyncio.Future[ClaimedJob | None] = asyncio.get_running_loop().create_future()

    @property
    def is_waiting(self) -> bool:
        """Is it still waiting? Its worker may have been cancelled."""
        return not self._future.done()

    async def wait(self) -> ClaimedJob | None:
        return await self._future

    def deliver(self, claimed: ClaimedJob | None) -> None:
        if self.is_waiting:
            self._future.set_result(claimed)

    def fail(self, error: BaseException) -> None:
        if self.is_waiting:
            self._future.set_exception(error)


def emit_for_waiters(
    hooks: Hooks,
    event: type[GetJobStarted] | type[GetJobEmpty],
    pool_id: str,
    waiters: Iterable[Waiter],
) -> None:
    """Say so for each of them, if anybody listens."""
    if hooks.has_listeners(event):
        for ask in waiters:
            hooks.emit(event(pool_id=pool_id, worker_id=ask.worker_id))


def emit_fetch_error(
    hooks: Hooks, pool_id: str, waiters: Iterable[Waiter], error: BaseException
) -> None:
    for ask in waiters:
        hooks.emit(GetJobErrored(pool_id=pool_id, worker_id=ask.worker_id, error=error))


def is_being_cancelled() -> bool:
    """Is this very task? Otherwise the error is of what was asked: a function for flags, say."""
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0
