"""TaskRouter: define tasks and cron items, and find them by identifier."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, TypeVar, overload

from graphile_worker.errors import ConfigurationError, JobSpecError, TaskNotFound
from graphile_worker.jobs import JobSpec
from graphile_worker.limits import Limit, check_definitions, name_limits
from graphile_worker.results import Retention
from graphile_worker.tasks.batch import BatchDecorator, BatchSignature, BatchTask, Item, Outcomes
from graphile_worker.tasks.context import D, Enqueuer, JobContext, SyncJobContext
from graphile_worker.tasks.external import ExternalTask, SchemaSource, build_external_error
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

if TYPE_CHECKING:
    from graphile_worker.crontab.items import CronKeyMode, ParsedCronItem
    from graphile_worker.crontab.zones import Matcher

A = TypeVar("A", bound=Awaitable[Any])
T = TypeVar("T", bound=Task[..., Any])

# The minute in the payload that is checked for a cron item.
EXAMPLE_MINUTE = datetime(2000, 1, 1, tzinfo=UTC)


class TaskDecorator(Generic[D]):
    """The decorator that `@app.task(…)` returns."""

    def __init__(self, add: Callable[[Any], Any]) -> None:
        self._add = add

    @overload
    def __call__(self, fn: Callable[Concatenate[JobContext[D], P], A], /) -> Task[P, A]: ...
    # A context of the other kind stays a parameter, so that `enqueue` is a type error.
    @overload
    def __call__(
        self, fn: Callable[Concatenate[SyncJobContext[D], P], A], /
    ) -> Task[Concatenate[SyncJobContext[D], P], A]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[SyncJobContext[D], P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, fn: Any, /) -> Any:
        """Make the function a task."""
        return self._add(fn)


def apply_task_options(task: Task[..., Any], item: "ParsedCronItem") -> "ParsedCronItem":
    """Return the cron item with the options of its task.

    Raises:
        ConfigurationError: The task cannot be called with the item's payload.
    """
    _check_cron_payload(task, item, item.payload)
    hint = ". Cron adds the key _cron, which the task must accept."
    _check_cron_payload(task, item, item.spec_at(EXAMPLE_MINUTE).payload, hint)
    return replace(item, spec=task.options.completed(item.spec))


def _check_cron_payload(
    task: Task[..., Any], item: "ParsedCronItem", payload: Any, hint: str = ""
) -> None:
    try:
        task.signature.normalize_payload(payload)
    except JobSpecError as error:
        raise ConfigurationError(f"cron item {item.identifier!r}: {error}{hint}") from error
    except ConfigurationError:
        # An annotation names a class that is defined further down.
        pass


def find_retentions(
    tasks: Mapping[str, Task[..., Any]], router: "TaskRouter[Any] | None"
) -> dict[str, Retention]:
    """Return what each of these tasks keeps of its ended jobs, without those that keep nothing."""
    found = {
        identifier: task.options.retention if router is None else router.find_retention(task)
        for identifier, task in tasks.items()
    }
    return {identifier: each for identifier, each in found.items() if each is not None}


def find_limits(tasks: Mapping[str, Task[..., Any]]) -> dict[str, tuple[Limit, ...]]:
    """Return the named limits of each of these tasks, without those that have none.

    Raises:
        ConfigurationError: Two tasks define a limit of the same name differently.
    """
    limits = {
        identifier: name_limits(task.options.limits, identifier)
        for identifier, task in tasks.items()
        if task.options.limit
    }
    check_definitions(limits)
    return limits


class TaskRouter(Generic[D]):
    """A group of tasks without a connection. An app includes it.

    Args:
        prefix: Text before the identifier of each task.
    """

    # Whether workers install and upgrade the schema. In a Django project, `manage.py migrate` does.
    _workers_migrate = True

    # Largest payload of the jobs that an app and its tasks add.
    _max_payload_bytes: int | None = None

    def __init__(self, *, prefix: str = "") -> None:
        self.prefix = prefix
        self._tasks: dict[str, Task[..., Any]] = {}
        self._external_tasks: dict[str, ExternalTask[..., Any]] = {}
        self._cron_items: list[ParsedCronItem] = []
        self._routers: list[TaskRouter[Any]] = []
        self._parent: TaskRouter[Any] | None = None
        self._subset_of: TaskRouter[Any] | None = None
        self._default_retention: Retention | None = None

    @overload
    def task(self, fn: Callable[Concatenate[JobContext[D], P], A], /) -> Task[P, A]: ...
    @overload
    def task(
        self, fn: Callable[Concatenate[SyncJobContext[D], P], A], /
    ) -> Task[Concatenate[SyncJobContext[D], P], A]: ...
    @overload
    def task(self, fn: Callable[Concatenate[SyncJobContext[D], P], R], /) -> Task[P, R]: ...
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
        retention: Retention | None = None,
        limit: Limit | Sequence[Limit] | None = None,
    ) -> TaskDecorator[D]: ...
    def task(self, fn: Any = None, /, *, name: str | None = None, **options: Any) -> Any:
        """Make a function a task.

        Args:
            fn: The function, if the decorator is used without parentheses.
            name: Identifier after the router's prefix (default: the function's name).
            queue_name: Named queue of its jobs.
            priority: Priority of its jobs.
            max_attempts: Number of attempts of its jobs.
            retry: Delay between attempts: a `Backoff`, or a function of the error and the job.
            timeout: Longest run.
            run_in: "loop", "thread" or "process" (default: a thread for plain functions).
            retention: What to keep of ended jobs (default: the app's `retention`, else nothing).
            limit: A `ConcurrencyLimit` or `RateLimit` over all Python workers, or several of them.

        Returns:
            The task, or a decorator if options are given.

        Raises:
            ConfigurationError: The function cannot be a task, its name is taken, or another task
                defines a limit of the same name differently.
        """
        chosen = TaskOptions(**options)
        if fn is not None:
            return self._add(fn, name, chosen)
        return TaskDecorator(lambda fn: self._add(fn, name, chosen))

    @overload
    def batch_task(
        self, fn: Callable[[JobContext[D], list[Item]], Awaitable[Outcomes]], /
    ) -> BatchTask[Item]: ...
    @overload
    def batch_task(
        self, fn: Callable[[SyncJobContext[D], list[Item]], Outcomes], /
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
        retention: Retention | None = None,
        limit: Limit | Sequence[Limit] | None = None,
    ) -> BatchDecorator[D]: ...
    def batch_task(self, fn: Any = None, /, *, name: str | None = None, **options: Any) -> Any:
        """Make a function of a list a task. One job has many items, and only failed items retry.

        The function returns an error or None for each item, returns None if all items succeeded,
        or raises PartialFailure. Any other exception fails all items. See `task` for the arguments.

        Returns:
            The task, or a decorator if options are given.

        Raises:
            ConfigurationError: The function cannot be a task, or its name is taken.
        """
        chosen = TaskOptions(**options)
        if fn is not None:
            return self._add(fn, name, chosen, BatchTask, BatchSignature)
        return BatchDecorator(lambda fn: self._add(fn, name, chosen, BatchTask, BatchSignature))

    def external_task(
        self,
        name: str,
        /,
        *,
        schema: SchemaSource | None = None,
        queue_name: str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
    ) -> Callable[[Callable[P, R]], ExternalTask[P, R]]:
        """Declare a task that another program runs, for example a Node worker.

        Write this above a function without a body, whose parameters are the keys of the payload.
        Jobs of the task are typed and checked when you enqueue them. No worker of the app runs
        the task.

        Args:
            name: Identifier of the task in the other program. The router's prefix is not added.
            schema: JSON Schema that payloads must fit, too, or the path of its file, if you like
                with a fragment: `tasks.json#/properties/resize`. Needs the package jsonschema.
            queue_name: Named queue of its jobs.
            priority: Priority of its jobs.
            max_attempts: Number of attempts of its jobs.

        Returns:
            A decorator, which returns the task.

        Raises:
            ConfigurationError: The function cannot be a task, its name is taken, or the schema is
                not valid.
        """
        options = TaskOptions(queue_name=queue_name, priority=priority, max_attempts=max_attempts)

        def add(fn: Callable[P, R]) -> ExternalTask[P, R]:
            self._reject_duplicates([name])
            task = ExternalTask[P, R](name, fn, options, self.find_enqueuer, schema)
            self._external_tasks[name] = task
            return task

        return add

    def cron(
        self,
        schedule: "str | Matcher",
        *,
        id: str | None = None,
        payload: Mapping[str, Any] | None = None,
        backfill: timedelta = timedelta(0),
        tz: str = "UTC",
        queue_name: str | None = None,
        max_attempts: int | None = None,
        priority: int | None = None,
        job_key: str | None = None,
        job_key_mode: "CronKeyMode | None" = None,
    ) -> Callable[[T], T]:
        """Schedule a task. Write this above `@task`, as often as you like.

        Args:
            schedule: Cron pattern, for example `30 4 * * 1`, or a function of the minute.
            id: Identifier of the cron item (default: the task's). Required for a second item.
            payload: Payload of the jobs.
            backfill: How far back to add jobs for minutes missed while no worker was running.
            tz: Time zone of the pattern.
            queue_name: Named queue of the jobs.
            max_attempts: Number of attempts of the jobs.
            priority: Priority of the jobs.
            job_key: Key of the jobs.
            job_key_mode: What to do when a job already has the key.

        Returns:
            A decorator for a task.

        Raises:
            ConfigurationError: The schedule or an option is not valid.
        """

        def add(task: T) -> T:
            if not isinstance(task, Task):
                raise ConfigurationError("write @cron(…) above @task, not below it")
            if job_key_mode is not None and job_key is None:
                warn_mode_without_key(f"cron item {id or task.identifier}", job_key_mode)
            from graphile_worker.crontab.items import CronItem, parse_cron_items

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
            return task

        return add

    def include(self, *routers: "TaskRouter[Any]") -> None:
        """Include the tasks of other routers, also tasks that they define later.

        Args:
            routers: The routers to include.

        Raises:
            ConfigurationError: A router is already included, or an identifier exists twice.
        """
        for router in routers:
            if router._parent is not None or router is self._root():
                raise ConfigurationError(f"{router!r} is already included elsewhere")
            self._reject_duplicates(router._list_identifiers())
            find_limits(self._root().tasks() | router.tasks())
            router._parent = self
            self._routers.append(router)

    def tasks(self) -> dict[str, Task[..., Any]]:
        """List all tasks, with those of included routers.

        Returns:
            The tasks by identifier.
        """
        tasks = dict(self._tasks)
        for router in self._routers:
            tasks |= router.tasks()
        return tasks

    def external_tasks(self) -> dict[str, ExternalTask[..., Any]]:
        """List all external tasks, with those of included routers.

        Returns:
            The tasks by identifier.
        """
        tasks = dict(self._external_tasks)
        for router in self._routers:
            tasks |= router.external_tasks()
        return tasks

    def find(self, identifier: str) -> Task[..., Any] | None:
        """Find a task in the app that includes this router.

        Args:
            identifier: Name of the task.

        Returns:
            The task, which may be external, or None if the app does not have it.
        """
        return (self._subset_of or self)._root()._find(identifier)

    def find_retention(self, task: Task[..., Any]) -> Retention | None:
        """Find what a task keeps of its ended jobs.

        Args:
            task: A task of the app that includes this router.

        Returns:
            The retention of the task, else that of the app, else None.
        """
        default = (self._subset_of or self)._root()._get_default_retention()
        if isinstance(task, BatchTask) and default is not None:
            # The outcomes of a batch are those of its items.
            default = replace(default, results=False)
        return task.options.retention or default

    def _get_default_retention(self) -> Retention | None:
        return self._default_retention

    def completed(self, spec: JobSpec) -> JobSpec:
        """Add the options of its task to a spec, if the app has that task.

        Args:
            spec: The job, added by the name of its task.

        Returns:
            The spec with the options of the task where it has none.

        Raises:
            JobSpecError: The task cannot be called with the payload.
        """
        task = self.find(spec.identifier)
        return spec if task is None else task.completed(spec)

    def subset(self, names: Collection[str]) -> "TaskRouter[D]":
        """Build a separate router with some of these tasks and their cron items.

        Args:
            names: Identifiers of the tasks.

        Returns:
            The new router.

        Raises:
            TaskNotFound: A name is unknown.
            ConfigurationError: A task is external.
        """
        known, some = self.tasks(), TaskRouter[D]()
        some._subset_of, some._workers_migrate = self, self._workers_migrate
        for identifier in names:
            if identifier not in known and isinstance(self.find(identifier), ExternalTask):
                raise build_external_error(identifier, "Remove it from the tasks of the worker.")
            if identifier not in known:
                raise TaskNotFound(identifier, known)
            some._tasks[identifier] = known[identifier]
        some._cron_items = [item for item in self.cron_items() if item.task in some._tasks]
        return some

    def cron_items(self) -> "list[ParsedCronItem]":
        """List all cron items, with those of included routers.

        Returns:
            The items.

        Raises:
            ConfigurationError: Two items have the same identifier.
        """
        items = list(self._cron_items)
        for router in self._routers:
            items += router.cron_items()
        if items:
            from graphile_worker.crontab.items import check_identifiers

            check_identifiers(items)
        return items

    def find_enqueuer(self) -> Enqueuer:
        """Return the app that includes this router.

        Raises:
            ConfigurationError: No app includes it.
        """
        if self._parent is None:
            raise ConfigurationError(
                f"{self!r} is not included in an app, so it cannot add jobs. Call "
                "app.include(router) where you create the app."
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
            raise ConfigurationError(f"{fn!r} has no __name__. Pass one with name=.")
        identifier = self.prefix + chosen
        self._reject_duplicates([identifier])
        task: Task[..., R] = kind(
            identifier, fn, options, self.find_enqueuer, signature(fn, identifier)
        )
        if options.limit:
            find_limits(self._root().tasks() | {identifier: task})
        self._tasks[identifier] = task
        return task

    def _reject_duplicates(self, identifiers: Iterable[str]) -> None:
        known = self._root()._list_identifiers()
        for identifier in identifiers:
            if identifier in known:
                raise ConfigurationError(
                    f"two tasks are named {identifier!r}. Pass another name to one of them, with "
                    "name=."
                )

    def _list_identifiers(self) -> set[str]:
        return {*self.tasks(), *self.external_tasks()}

    def _find(self, identifier: str) -> Task[..., Any] | None:
        task = self._tasks.get(identifier) or self._external_tasks.get(identifier)
        if task is not None:
            return task
        matches = (router._find(identifier) for router in self._routers)
        return next((task for task in matches if task is not None), None)

    def _root(self) -> "TaskRouter[Any]":
        return self if self._parent is None else self._parent._root()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} prefix={self.prefix!r}>"
