"""The tasks of `django.tasks` that this process has defined, and their identifiers.

Workers run only tasks of this registry. They never import a name that they find in a row. This
module does not need `django.tasks`, so that apps without a backend work on every Django.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any

from django.core.signals import setting_changed

from graphile_worker.contrib.django._job_options import QUEUE_SEPARATOR, get_job_options
from graphile_worker.tasks import Task

if TYPE_CHECKING:
    from graphile_worker.contrib.django._app import DjangoApp

DEFAULT_QUEUE = "default"

JobTasks = Mapping[str, Task[..., Any]]

# By the alias of the backend and the module path. The first of a path is the defined one: `using`
# makes copies. Not on the backend, because each thread and context has its own.
_tasks: dict[tuple[str, str], Any] = {}
_lock = Lock()
_version = 0

# By the alias of the database and the id of the hooks of the app, with the version.
_built: dict[tuple[str, int], tuple[int, JobTasks]] = {}

# Queues that the command line names, for a backend that accepts any.
_served_queues: set[str] = set()


def register(alias: str, task: Any) -> None:
    """Add a task of a backend, unless it is known."""
    key = (alias, task.module_path)
    if key not in _tasks:
        with _lock:
            _tasks.setdefault(key, task)
        _change()


def serve_queues(names: Iterable[str]) -> None:
    """Run jobs of these queues too, where the backend accepts any queue."""
    _served_queues.update(names)
    _change()


def list_served_queues() -> set[str]:
    """Return the queues that a worker of a backend without a list of queues runs."""
    return {DEFAULT_QUEUE, *_served_queues, *(each.queue_name for each in list(_tasks.values()))}


def list_registered() -> dict[str, Any]:
    """Return the tasks of all backends of this queue, by module path.

    A program can enqueue a task to any of them with `using(backend=…)`, and the worker does not
    run that line.
    """
    tasks: dict[str, Any] = {}
    for (_, path), task in list(_tasks.items()):
        tasks.setdefault(path, task)
    return tasks


def build_identifier(task: Any, queue: str | None = None) -> str:
    """Return the identifier of the jobs of a task, in its queue or another one."""
    name = get_job_options(task.func).name or task.module_path
    chosen = task.queue_name if queue is None else queue
    return name if chosen == DEFAULT_QUEUE else f"{name}{QUEUE_SEPARATOR}{chosen}"


def find_registered(identifier: str) -> tuple[Any, str] | None:
    """Return the task and the queue of an identifier, or None if no task has it."""
    name, _, queue = identifier.partition(QUEUE_SEPARATOR)
    task = _index_by_name(_version).get(name)
    return None if task is None else (task, queue or DEFAULT_QUEUE)


@lru_cache(maxsize=1)
def _index_by_name(_version: int) -> dict[str, Any]:
    """Return the tasks by the name that their identifiers start with."""
    return {build_identifier(task, DEFAULT_QUEUE): task for task in list_registered().values()}


def get_job_tasks(app: "DjangoApp") -> JobTasks:
    """Return the tasks of `django.tasks` whose jobs are in the database of an app, by identifier.

    Args:
        app: The app.
    """
    if not _tasks:
        return {}
    key, version = (app.alias, id(app.hooks)), _version
    known = _built.get(key)
    if known is None or known[0] != version:
        # Imported here, because it needs `django.tasks`.
        running = import_module("graphile_worker.contrib.django._running")
        known = _built[key] = (version, running.build_job_tasks(app))
    return known[1]


def _change() -> None:
    global _version
    with _lock:
        _version += 1


def _forget(*, setting: str, **_: object) -> None:
    if setting in ("TASKS", "GRAPHILE_WORKER"):
        _change()


setting_changed.connect(_forget, dispatch_uid="graphile_worker.tasks")
