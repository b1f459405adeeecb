"""Workers that wait for a job, and what is said about them."""

import asyncio
from collections.abc import Iterable

from graphile_worker.events import GetJobEmpty, GetJobErrored, GetJobStarted
from graphile_worker.hooks import Hooks
from graphile_worker.sql.holding import HeldJob


class Ask:
    """A worker that waits for a job; None tells it that there will be no more."""

    __slots__ = ("_answer", "worker_id")

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self._answer: asyncio.Future[HeldJob | None] = asyncio.get_running_loop().create_future()

    @property
    def is_open(self) -> bool:
        """Is it still waiting? Its worker may have been cancelled."""
        return not self._answer.done()

    async def wait(self) -> HeldJob | None:
        return await self._answer

    def answer(self, held: HeldJob | None) -> None:
        if self.is_open:
            self._answer.set_result(held)

    def refuse(self, error: BaseException) -> None:
        if self.is_open:
            self._answer.set_exception(error)


def announce(
    hooks: Hooks,
    event: type[GetJobStarted] | type[GetJobEmpty],
    pool_id: str,
    asks: Iterable[Ask],
) -> None:
    """Say so for each of them, if anybody listens."""
    if hooks.hears(event):
        for ask in asks:
            hooks.emit(event(pool_id=pool_id, worker_id=ask.worker_id))


def announce_failure(hooks: Hooks, pool_id: str, asks: Iterable[Ask], error: BaseException) -> None:
    for ask in asks:
        hooks.emit(GetJobErrored(pool_id=pool_id, worker_id=ask.worker_id, error=error))


def is_being_cancelled() -> bool:
    """Is this very task? Otherwise the error is of what was asked: a function for flags, say."""
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0
