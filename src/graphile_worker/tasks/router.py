"""Tasks: a router that makes functions tasks, knows them by name, and says which of them recur."""

import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Concatenate, Generic, overload

from graphile_worker.crontab.items import (
    CronItem,
    CronKeyMode,
    ParsedCronItem,
    check_identifiers,
    parse_cron_items,
)
from graphile_worker.crontab.zones import Matcher
from graphile_worker.errors import ConfigurationError, JobSpecError, TaskNotFound
from graphile_worker.jobs import JobSpec
from graphile_worker.tasks.batch import BatchDecorator, BatchSignature, BatchTask, Item, Outcomes
from graphile_worker.tasks.context import Enqueuer, JobContext
from graphile_worker.tasks.signatures import Signature
from graphile_worker.tasks.task import (
    P,
    R,
    RetryPolicy,
    RunIn,
    Task,
    TaskOptions,
    warn_mode_without_key,
)

if sys.version_info >= (3, 13):
    from typing import TypeVar
else:
    from typing_extensions import TypeVar

D = TypeVar("D", default=None)  # what the lifespan of an app yields
T = TypeVar("T", bound=Task[..., Any])


class TaskDecorator(Generic[D]):
    """What `@tasks.task(…)` returns."""

    def __init__(self, add: Callable[[Any], Any]) -> None:
        self._add = add

    @overload
    def __call__(self, fn: Callable[Concatenate[JobContext[D], P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, fn: Any, /) -> Any:
        return self._add(fn)


class CronDecorator:
    """What `@tasks.cron(…)` returns."""

    def __init__(self, add: Callable[[Task[..., Any]], None]) -> None:
        self._add = add

    def __call__(self, task: T, /) -> T:
        if not isinstance(task, Task):
            raise ConfigurationError("write @cron(…) above @task, not below it")
        self._add(task)
        return task


def apply_task_options(task: Task[..., Any], item: ParsedCronItem) -> ParsedCronItem:
    """The item with what the definition of its task says.

    Raises ConfigurationError if the task could never be called with its payload.
    """
    try:
        task.signature.normalize_payload(item.payload)
    except JobSpecError as error:
        raise ConfigurationError(f"cron item {item.identifier!r}: {error}") from error
    except ConfigurationError:
        # An annotation that cannot be read yet.
        pass
    return replace(item, spec=task.options.completed(item.spec))


class TaskRouter(Generic[D]):
    """A router of tasks: no connection, no global state. An app includes it."""

    def __init__(self, *, prefix: str = "") -> None:
        self.prefix = prefix
        self._tasks: dict[str, Task[..., Any]] = {}
        self._cron_items: list[ParsedCronItem] = []
        self._routers: list[TaskRouter[Any]] = []
        self._parent: TaskRouter[Any] | None = None
        self._subset_of: TaskRouter[Any] | None = None

    @overload
    def task(self, fn: Callable[Concatenate[JobContext[D], P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue_name: str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
        run_in: RunIn | None = None,
    ) -> TaskDecorator[D]: ...
    def task(self, fn: Any = None, /, *, name: str | None = None, **options: Any) -> Any:
        """Make a function a task; its identifier is its name, after the router's prefix."""
        chosen = TaskOptions(**options)
        if fn is not None:
            return self._add(fn, name, chosen)
        return TaskDecorator(lambda fn: self._add(fn, name, chosen))

    @overload
    def batch_task(
        self, fn: Callable[[JobContext[D], list[Item]], Outcomes | Awaitable[Outcomes]], /
    ) -> BatchTask[Item]: ...
    @overload
    def batch_task(
        self, fn: Callable[[list[Item]], Outcomes | Awaitable[Outcomes]], /
    ) -> BatchTask[Item]: ...
    @overload
    def batch_task(
        self,
        /,
        *,
        name: str | None = None,
        queue_name: str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
        run_in: RunIn | None = None,
    ) -> BatchDecorator[D]: ...
    def batch_task(self, fn: Any = None, /, *, name: str | None = None, **options: Any) -> Any:
        """Make a function of a list a task: one job for many items, those that fail tried again.

        It returns an error or None for each item, or None if all went well; or it raises
        PartialFailure. Whatever else it raises is about all of them.
        """
        chosen = TaskOptions(**options)
        if fn is not None:
            return self._add(fn, name, chosen, BatchTask, BatchSignature)
        return BatchDecorator(lambda fn: self._add(fn, name, chosen, BatchTask, BatchSignature))

    def cron(
        self,
        schedule: str | Matcher,
        *,
        id: str | None = None,
        payload: Mapping[str, Any] | None = None,
        backfill: timedelta = timedelta(0),
        tz: str = "UTC",
        queue_name: str | None = None,
        max_attempts: int | None = None,
        priority: int | None = None,
        job_key: str | None = None,
        job_key_mode: CronKeyMode | None = None,
    ) -> CronDecorator:
        """Run a task by a pattern such as `30 4 * * 1`, or when a function of the minute says so.

        Stands above `@task`, any number of times; each but one then needs an `id` of its own.
        """

        def add(task: Task[..., Any]) -> None:
            if job_key_mode is not None and job_key is None:
                warn_mode_without_key(f"cron item {id or task.identifier}", job_key_mode)
            item = CronItem(
                task=task.identifier,
                match=schedule,
                identifier=id,
                payload=payload,
                backfill=backfill,
                tz=tz,
                queue_name=queue_name,
                max_attempts=max_attempts,
                priority=priority,
                job_key=job_key,
                job_key_mode=job_key_mode,
            )
            self._cron_items += [
                apply_task_options(task, each) for each in parse_cron_items([item])
            ]

        return CronDecorator(add)

    def include(self, *routers: "TaskRouter[Any]") -> None:
        """Take in the tasks of routers, those that they will yet define too."""
        for router in routers:
            if router._parent is not None or router is self._root():
                raise ConfigurationError(f"{router!r} is already included elsewhere")
            self._reject_duplicates(router.tasks())
            router._parent = self
            self._routers.append(router)

    def tasks(self) -> dict[str, Task[..., Any]]:
        """Every task by its identifier, those of included routers too."""
        found = dict(self._tasks)
        for router in self._routers:
            found |= router.tasks()
        return found

    def find(self, identifier: str) -> Task[..., Any] | None:
        """The task of that name in the app that these tasks are part of."""
        return (self._subset_of or self)._root()._find(identifier)

    def completed(self, spec: JobSpec) -> JobSpec:
        """The spec with what the definition of its task says; the same if there is none.

        Raises JobSpecError if the task cannot be called with its payload.
        """
        task = self.find(spec.identifier)
        return spec if task is None else task.completed(spec)

    def subset(self, names: Collection[str]) -> "TaskRouter[D]":
        """Some of these tasks, with their cron items, as a router of their own."""
        known, some = self.tasks(), TaskRouter[D]()
        some._subset_of = self
        for identifier in names:
            if identifier not in known:
                raise TaskNotFound(identifier, known)
            some._tasks[identifier] = known[identifier]
        some._cron_items = [item for item in self.cron_items() if item.task in some._tasks]
        return some

    def cron_items(self) -> list[ParsedCronItem]:
        """Every cron item, those of included routers too; two of one id are refused."""
        found = list(self._cron_items)
        for router in self._routers:
            found += router.cron_items()
        check_identifiers(found)
        return found

    def find_enqueuer(self) -> Enqueuer:
        """Whoever adds the jobs of these tasks: the app at the root."""
        if self._parent is None:
            raise ConfigurationError(
                f"{self!r} is not included in an app: who shall add its jobs? "
                "Write app.include(router) where the app is made"
            )
        return self._parent.find_enqueuer()

    def _add(
        self,
        fn: Callable[..., R],
        name: str | None,
        options: TaskOptions,
        kind: type[Task[..., Any]] = Task,
        signature: type[Signature] = Signature,
    ) -> Task[..., R]:
        chosen = name or getattr(fn, "__name__", None)
        if chosen is None:
            raise ConfigurationError(f"{fn!r} has no name of its own: give it one with name=…")
        identifier = self.prefix + chosen
        self._reject_duplicates([identifier])
        reads = signature(fn, identifier)
        task: Task[..., R] = kind(identifier, fn, options, self.find_enqueuer, reads)
        self._tasks[identifier] = task
        return task

    def _reject_duplicates(self, identifiers: Iterable[str]) -> None:
        known = self._root().tasks()
        for identifier in identifiers:
            if identifier in known:
                raise ConfigurationError(
                    f"two tasks are named {identifier!r}: give one of them another name with name=…"
                )

    def _find(self, identifier: str) -> Task[..., Any] | None:
        if (task := self._tasks.get(identifier)) is not None:
            return task
        found = (router._find(identifier) for router in self._routers)
        return next((task for task in found if task is not None), None)

    def _root(self) -> "TaskRouter[Any]":
        return self if self._parent is None else self._parent._root()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} prefix={self.prefix!r}>"
