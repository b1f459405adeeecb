"""RunawayTracker: counts plain functions that run past their timeout."""

from collections import Counter
from collections.abc import Callable

from graphile_worker.events import JobOverran, TaskPaused, TaskResumed
from graphile_worker.hooks import Hooks


class RunawayTracker:
    """Pauses a task with `max_runaways` such functions: its jobs are not claimed or started.

    A function in a thread cannot be stopped. It keeps its job and its slot until it returns.
    """

    def __init__(self, hooks: Hooks, max_runaways: int | None) -> None:
        self.paused_tasks: set[str] = set()
        # Called when `paused_tasks` has changed, and after the pause of a task.
        self.on_changed: Callable[[], None] = lambda: None
        self.on_resumed: Callable[[], None] = lambda: None
        self._hooks = hooks
        self._max_runaways = max_runaways
        self._counts: Counter[str] = Counter()

    def add(self, event: JobOverran) -> None:
        """Count a function that reached its timeout."""
        name = event.job.task_identifier
        self._counts[name] += 1
        self._hooks.emit(event)
        if self._has_too_many(name) and name not in self.paused_tasks:
            self.paused_tasks.add(name)
            self.on_changed()
            self._hooks.emit(
                TaskPaused(pool_id=event.pool_id, task_identifier=name, count=self._counts[name])
            )

    def remove(self, event: JobOverran) -> None:
        """Stop counting a function, because it returned."""
        name = event.job.task_identifier
        self._counts[name] -= 1
        if name in self.paused_tasks and not self._has_too_many(name):
            self.paused_tasks.discard(name)
            self.on_changed()
            self._hooks.emit(TaskResumed(pool_id=event.pool_id, task_identifier=name))
            self.on_resumed()

    def _has_too_many(self, name: str) -> bool:
        return self._max_runaways is not None and self._counts[name] >= self._max_runaways
