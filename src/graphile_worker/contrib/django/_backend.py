"""GraphileBackend: a backend of `django.tasks` whose tasks are jobs of this queue."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.core import checks
from django.utils import timezone

from graphile_worker._sql.queries.outcomes import get_job_record
from graphile_worker._support.text import suggest
from graphile_worker.contrib.django._app import DjangoApp, app, app_for
from graphile_worker.contrib.django._checks import check_installed
from graphile_worker.contrib.django._compat import (
    BaseTaskBackend,
    InvalidTask,
    InvalidTaskBackend,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_enqueued,
)
from graphile_worker.contrib.django._job_options import get_job_options
from graphile_worker.contrib.django._registry import (
    DEFAULT_QUEUE,
    build_identifier,
    find_registered,
    list_registered,
    register,
)
from graphile_worker.contrib.django._settings import get_settings
from graphile_worker.contrib.django._task_results import (
    build_ended_result,
    build_payload,
    localize,
)
from graphile_worker.errors import JobSpecError
from graphile_worker.jobs import JobKeyMode, JobKeyModeName, JobSpec, check_max_attempts
from graphile_worker.results import Retention

DEFAULT_RETENTION = Retention(results=True, attempts=True, payloads=True)

# Tasks of other packages are written for backends that make one attempt. A job of a dead worker
# still runs again.
DEFAULT_MAX_ATTEMPTS = 1

# The longest identifier that the database stores.
MAX_IDENTIFIER_CHARS = 128

MAX_JOB_ID = 2**63 - 1
MAX_JOB_ID_DIGITS = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphileTask(Task):
    """A task of `django.tasks` with the options of this queue.

    Attributes:
        max_attempts: Number of attempts (default: that of `job_options`, then of the backend).
        job_key: Unique key, by which a later call replaces the job.
        job_key_mode: What to do when a job already has the key.
        serial: Named queue of the worker. Its jobs run one at a time.
        unique: Unique key of a window: while it is open, no other job is added with it.
        unique_for: Length of the window, which stays open when the job ends.
    """

    max_attempts: int | None = None
    job_key: str | None = None
    job_key_mode: JobKeyMode | JobKeyModeName | None = None
    serial: str | None = None
    unique: str | None = None
    unique_for: timedelta | None = None

    def using(self, **changes: Any) -> "GraphileTask":
        """Return a copy of this task with other options.

        Args:
            changes: `priority`, `queue_name`, `run_after` and `backend` of Django, and the
                attributes of this class. None changes nothing.

        Returns:
            The copy.

        Raises:
            InvalidTask: The backend cannot run such a task.
            TypeError: An option does not exist.
        """
        return replace(self, **{name: each for name, each in changes.items() if each is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """The values of `OPTIONS`, by their names in lower case."""

    database: str | None = None
    retention: Retention | None = DEFAULT_RETENTION
    max_attempts: int = DEFAULT_MAX_ATTEMPTS


class GraphileBackend(BaseTaskBackend):
    """Run tasks of `django.tasks` as jobs of this queue. Name it as `BACKEND` in `TASKS`.

    Enqueueing joins the transaction of `atomic()`. Delivery is at least once.

    `OPTIONS` can have these keys:

    - `DATABASE`: alias of the database (default: that of the setting `GRAPHILE_WORKER`)
    - `RETENTION`: what to keep of ended jobs (default: results, attempts and payloads). With None,
      or without results, `supports_get_result` is False
    - `MAX_ATTEMPTS`: number of attempts (default: 1)

    Args:
        alias: Key of `TASKS`.
        params: Value of `TASKS`.

    Raises:
        InvalidTaskBackend: A key or a value of `OPTIONS` is not valid.
    """

    task_class = GraphileTask
    supports_defer = True
    supports_async_task = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        chosen = _read_options(alias, self.options)
        self._database = chosen.database
        self.max_attempts = chosen.max_attempts
        self.retention = chosen.retention
        self.supports_get_result = chosen.retention is not None and chosen.retention.results

    @property
    def database(self) -> str:
        """Return the alias of the database that has the jobs."""
        return self._database or get_settings().database

    @property
    def app(self) -> DjangoApp:
        """Return the app of this database."""
        return app_for(self.database)

    def validate_task(self, task: Any) -> None:
        """Raise InvalidTask if this backend cannot run a task, else register it for workers."""
        super().validate_task(task)
        self._build_spec(task)
        register(self.alias, task)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Add the job of a task, in the transaction of `atomic()`.

        Args:
            task: The task.
            args: Positional arguments of its function.
            kwargs: Keyword arguments of its function.

        Returns:
            The result, which is READY. Its id is that of the job.

        Raises:
            InvalidTask: This backend cannot run the task.
            TypeError: JSON cannot represent an argument.
            ValueError: The database cannot store an argument, for example NaN.
        """
        self.validate_task(task)
        # Checked before it is sent: bytes become text, tuples become lists.
        given_args, given_kwargs = normalize_json(list(args)), normalize_json(dict(kwargs))
        payload = build_payload(given_args, given_kwargs)
        try:
            job = self.app.enqueue(self._build_spec(task, payload))
        except JobSpecError as error:
            raise ValueError(str(error)) from error
        result = TaskResult(
            task=task,
            id=str(job.id),
            status=TaskResultStatus.READY,
            enqueued_at=localize(job.created_at),
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=given_args,
            kwargs=given_kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Get what became of a task, with one query.

        Args:
            result_id: Id of the result.

        Returns:
            The result.

        Raises:
            TaskResultDoesNotExist: No job has this id. It was rolled back or removed, its outcome
                is older than the time that outcomes are kept, or no task of this process has its
                identifier.
            NotImplementedError: The backend keeps no results.
        """
        if not self.supports_get_result:
            return super().get_result(result_id)
        text = str(result_id)
        is_number = text.isascii() and text.isdigit()
        # int() raises for thousands of digits.
        if not is_number or len(text) > MAX_JOB_ID_DIGITS or int(text) > MAX_JOB_ID:
            raise TaskResultDoesNotExist(text)
        record = self.app.database.run(get_job_record(int(text)))
        found = record.row or record.outcome
        if found is None:
            raise TaskResultDoesNotExist(text)
        known = find_registered(found.task_identifier or "")
        if known is None:
            raise TaskResultDoesNotExist(
                f"{text}: no task of this process has the identifier {found.task_identifier!r}"
            )
        return build_ended_result(self.alias, int(text), record, *known)

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """Check the entry of `TASKS` and the tasks, without a query."""
        if missing := check_installed():
            return missing
        return [
            *super().check(**kwargs),
            *self._check_identifiers(),
            *self._check_database(),
            *self._check_queues(),
        ]

    def _build_spec(self, task: Any, payload: Any = None) -> JobSpec:
        options = get_job_options(task.func)

        def choose(name: str, default: Any = None) -> Any:
            # A task of another backend has only Django's attributes.
            for value in (getattr(task, name, None), getattr(options, name)):
                if value is not None:
                    return value
            return default

        try:
            return JobSpec(
                build_identifier(task),
                payload,
                # Django runs larger numbers first, the queue smaller ones.
                priority=-int(task.priority),
                run_at=_make_aware(task.run_after),
                max_attempts=choose("max_attempts", self.max_attempts),
                job_key=choose("job_key"),
                job_key_mode=choose("job_key_mode"),
                queue_name=choose("serial"),
                unique=choose("unique"),
                unique_for=choose("unique_for"),
            )
        except JobSpecError as error:
            raise InvalidTask(str(error)) from error

    def _check_identifiers(self) -> Iterator[checks.CheckMessage]:
        queues = self.queues or {DEFAULT_QUEUE}
        paths = {
            identifier: f"{task.fn.__module__}.{task.fn.__qualname__}"
            for identifier, task in super(DjangoApp, app).tasks().items()
        }
        for path, task in sorted(list_registered().items()):
            identifiers = [build_identifier(task, queue) for queue in sorted(queues)]
            longest = max(identifiers, key=len)
            if len(longest) > MAX_IDENTIFIER_CHARS:
                yield checks.Error(
                    f"The identifier {longest!r} of task {path} has {len(longest)} characters, "
                    f"more than {MAX_IDENTIFIER_CHARS}.",
                    hint="Give the task a shorter name with @job_options(name=…).",
                    obj=path,
                    id="graphile_worker.E004",
                )
            name = build_identifier(task, DEFAULT_QUEUE)
            other = paths.setdefault(name, path)
            if other != path:
                yield checks.Error(
                    f"The tasks {other} and {path} have the same identifier {name!r}.",
                    hint="Give one of them another name with @job_options(name=…).",
                    obj=path,
                    id="graphile_worker.E004",
                )
            if get_job_options(task.func).run_in == "process":
                yield checks.Error(
                    f'The task {path} cannot run with run_in="process".',
                    hint='Define it with @app.task(run_in="process"), or remove run_in.',
                    obj=path,
                    id="graphile_worker.E006",
                )

    def _check_database(self) -> Iterator[checks.CheckMessage]:
        for alias in task_backends:
            if alias == self.alias:
                return
            other = task_backends[alias]
            if isinstance(other, GraphileBackend) and other.database == self.database:
                yield checks.Error(
                    f"TASKS[{alias!r}] and TASKS[{self.alias!r}] use the same database "
                    f"{self.database!r}, so a job could belong to either.",
                    hint="Set OPTIONS['DATABASE'] of one of them, or remove it and use QUEUES.",
                    id="graphile_worker.E005",
                )

    def _check_queues(self) -> Iterator[checks.CheckMessage]:
        if not self.queues:
            yield checks.Warning(
                f"TASKS[{self.alias!r}] accepts any queue, but a worker runs only the queues that "
                "it knows.",
                hint="List all queues in QUEUES, or start workers with --queue.",
                id="graphile_worker.W003",
            )


def _read_options(alias: str, values: Mapping[str, Any]) -> BackendOptions:
    types: dict[str, tuple[type[Any], ...]] = {
        "DATABASE": (str, type(None)),
        "RETENTION": (Retention, type(None)),
        "MAX_ATTEMPTS": (int,),
    }
    for name, value in values.items():
        if name not in types:
            raise InvalidTaskBackend(
                f"TASKS[{alias!r}]['OPTIONS'] has an unknown key {name!r}"
                f"{suggest(str(name), types)}"
            )
        if not isinstance(value, types[name]):
            expected = " or ".join(each.__name__ for each in types[name])
            raise InvalidTaskBackend(
                f"TASKS[{alias!r}]['OPTIONS'][{name!r}] must be of type {expected}, got {value!r}."
            )
    options = BackendOptions(**{name.lower(): value for name, value in values.items()})
    try:
        check_max_attempts(options.max_attempts)
    except JobSpecError as error:
        raise InvalidTaskBackend(f"TASKS[{alias!r}]['OPTIONS']: {error}") from error
    return options


def _make_aware(time: datetime | None) -> datetime | None:
    if time is None or timezone.is_aware(time):
        return time
    aware: datetime = timezone.make_aware(time, timezone.get_default_timezone())
    return aware
