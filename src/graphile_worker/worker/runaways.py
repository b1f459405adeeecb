"""Runaways: plain functions that run past their timeout, and the tasks that have too many."""

from collections import Counter
from collections.abc import Callable

from graphile_worker.events import JobOverran, TaskPaused, TaskResumed
from graphile_worker.hooks import Hooks


def ignore() -> None:
    """There is no pool to tell yet."""


class Runaways:
    """Counts such functions by task. A task with `most` of them is paused: no job of it starts.

    A function in a thread cannot be stopped. It keeps its job and its slot until it returns.
    """

    def __init__(self, hooks: Hooks, most: int | None) -> None:
        self.paused: set[str] = set()
        # Told when a task is not paused any more.
        self.on_resumed: Callable[[], None] = ignore
        self._hooks = hooks
        self._most = most
        self._counts: Counter[str] = Counter()

    def add(self, overran: JobOverran) -> None:
        """This function has reached its timeout."""
        name = overran.job.task_identifier
        self._counts[name] += 1
        self._hooks.emit(overran)
        if self._is_too_many(name) and name not in self.paused:
            self.paused.add(name)
            self._hooks.emit(
                TaskPaused(pool_id=overran.pool_id, task_identifier=name, count=self._counts[name])
            )

    def remove(self, overran: JobOverran) -> None:
        """It has ended."""
        name = overran.job.task_identifier
        self._counts[name] -= 1
        if name in self.paused and not self._is_too_many(name):
            self.paused.discard(name)
            self._hooks.emit(TaskResumed(pool_id=overran.pool_id, task_identifier=name))
            self.on_resumed()

    def _is_too_many(self, name: str) -> bool:
        return self._most is not None and self._counts[name] >= self._most
