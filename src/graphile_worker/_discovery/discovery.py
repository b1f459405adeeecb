"""Find tasks in a folder or in the app of a module, and cron items in a crontab or an app."""

import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from graphile_worker._discovery.executables import Executable
from graphile_worker._discovery.task_folder import TaskFile, find_task_files
from graphile_worker._support.trust import TrustChecker
from graphile_worker.crontab import ParsedCronItem, parse_crontab
from graphile_worker.crontab.items import check_identifiers
from graphile_worker.errors import ConfigurationError
from graphile_worker.options import ExecutableOptions
from graphile_worker.tasks import ExternalTask, Task, TaskRouter, make_positional_task
from graphile_worker.tasks.external import build_external_error
from graphile_worker.tasks.importing import FOLDER_MODULE_PREFIX, import_file, import_module
from graphile_worker.tasks.router import apply_task_options
from graphile_worker.tasks.source_only import register_source_folder

logger = logging.getLogger("graphile_worker")


def load_tasks(
    path: Path,
    executables: ExecutableOptions | None = None,
    *,
    allow_unsafe: bool = False,
) -> dict[str, Task[..., Any]]:
    """Load the tasks of a folder, or all functions of one file."""
    if path.is_file():
        _check_trust(path, "the task file", allow_unsafe)
        return build_tasks(_find_functions(_import_file(path, path.stem)))
    if not path.is_dir():
        raise ConfigurationError(
            f"no tasks folder at {path}. Create it, or pass another one with --tasks."
        )
    trust = TrustChecker(path, allow_unsafe=allow_unsafe)
    files = find_task_files(path, trust)
    register_source_folder(path, trust)
    loaded = {
        file.identifier: _load_task_file(file, executables or ExecutableOptions()) for file in files
    }
    return {identifier: task for identifier, task in loaded.items() if task is not None}


def build_tasks(functions: Mapping[str, Callable[..., Any]]) -> dict[str, Task[..., Any]]:
    """Build tasks from a mapping. Plain functions are called as `fn(payload, context)`."""
    for name, function in functions.items():
        if isinstance(function, ExternalTask):
            raise build_external_error(name, "Remove it from the tasks of the worker.")
    return {
        name: function.with_identifier(name)
        if isinstance(function, Task)
        else make_positional_task(name, function)
        for name, function in functions.items()
    }


def load_crontab(path: Path, *, allow_unsafe: bool = False) -> list[ParsedCronItem]:
    """Load the items of a crontab file."""
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise ConfigurationError(f"the crontab {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"the crontab {path} is not UTF-8: {error.reason}") from error
    _check_trust(path, "the crontab", allow_unsafe)
    return parse_crontab(text.removeprefix("\ufeff"), source=str(path))


def resolve_cron_items(
    tasks: object,
    *,
    crontab: str | None = None,
    crontab_file: Path | str | None = None,
    cron_items: Sequence[ParsedCronItem] | None = None,
    allow_unsafe: bool = False,
) -> Callable[[], list[ParsedCronItem]] | None:
    """Return a function that lists the cron items of an app and of one other source.

    Call the function each time, because `cron_items` may change while a worker runs. Returns None
    if both have no items.
    """
    sources = (crontab, crontab_file, cron_items)
    if sum(source is not None for source in sources) > 1:
        raise ConfigurationError("pass only one of crontab, crontab_file and cron_items")
    items = [] if cron_items is None else cron_items
    if crontab is not None:
        items = parse_crontab(crontab)
    elif crontab_file is not None:
        items = load_crontab(Path(crontab_file), allow_unsafe=allow_unsafe)
    app_items = tasks.cron_items() if isinstance(tasks, TaskRouter) else []
    for item in items:
        if not isinstance(item, ParsedCronItem):
            raise ConfigurationError(
                f"cron_items come from parse_cron_items() or parse_crontab(), got {item!r}"
            )
    check_identifiers([*app_items, *items])
    if not app_items and not items and cron_items is None:
        return None
    if not isinstance(tasks, TaskRouter):
        return lambda: [*items]
    for item in items:
        if (task := tasks.find(item.task)) is not None:
            apply_task_options(task, item)
    return lambda: [*app_items, *(_apply_task_options(tasks, item) for item in items)]


def _apply_task_options(tasks: TaskRouter[Any], item: ParsedCronItem) -> ParsedCronItem:
    """Return the item with the options of its task, its payload unchecked."""
    task = tasks.find(item.task)
    return item if task is None else replace(item, spec=task.options.completed(item.spec))


def load_app(path: str) -> TaskRouter[Any]:
    """Import the app at `module:attribute`, whose default attribute is `app`."""
    module_name, _, attribute = path.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigurationError(
            f"--app {path}: no module {module_name!r}. Write package.module:app."
        )
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        # So that the program finds its own modules, as with python -m.
        sys.path.insert(0, str(Path.cwd()))
    module = _import_app_module(path, module_name)
    app = getattr(module, attribute or "app", None)
    if isinstance(app, TaskRouter):
        return app
    apps = [name for name, value in vars(module).items() if isinstance(value, TaskRouter)]
    hint = f"Write {module_name}:{apps[0]}." if apps else "Define one there: app = App()."
    raise ConfigurationError(f"no app {attribute or 'app'!r} in {module_name}. {hint}")


def _import_app_module(path: str, name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"--app {path}: no module {error.name!r}. Write package.module:app, as seen from the "
            "current directory."
        ) from error


def _check_trust(path: Path, what: str, allow_unsafe: bool) -> None:
    trust = TrustChecker(path, allow_unsafe=allow_unsafe)
    trust.check(what)
    trust.warn_group_writable()


def _load_task_file(file: TaskFile, executables: ExecutableOptions) -> Task[..., Any] | None:
    if file.is_python:
        return _load_python_task(file.identifier, file.path)
    return make_positional_task(
        file.identifier, Executable(file.identifier, file.path, executables)
    )


def _load_python_task(identifier: str, file: Path) -> Task[..., Any] | None:
    module = _import_file(file, identifier)
    names = ("task", identifier.rpartition("/")[2])
    for name in names:
        function = getattr(module, name, None)
        if inspect.isfunction(function):
            return make_positional_task(identifier, function)
    task = _find_task_object(module, names)
    if task is not None:
        return task.with_identifier(identifier)
    logger.warning(
        "ignored file %s (no task found): define a function named task, or named like the file",
        file,
    )
    return None


def _find_task_object(module: ModuleType, names: Sequence[str]) -> Task[..., Any] | None:
    """Return the task that a file defines, preferably under one of these names.

    A file without its own task may import one under such a name.
    """
    tasks = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, Task) and not isinstance(value, ExternalTask)
    }
    own = {name: task for name, task in tasks.items() if not _is_imported(task, module)}
    candidates = own or tasks
    for name in names:
        if name in candidates:
            return candidates[name]
    return next(iter(own.values())) if len(own) == 1 else None


def _is_imported(task: Task[..., Any], module: ModuleType) -> bool:
    """Return whether another module, that of the function, has the task."""
    source = sys.modules.get(getattr(task.fn, "__module__", ""))
    if source is None or source is module:
        return False
    return any(value is task for value in vars(source).values())


def _import_file(file: Path, identifier: str) -> ModuleType:
    return import_file(file, FOLDER_MODULE_PREFIX + identifier.replace("/", "."))


def _find_functions(module: ModuleType) -> dict[str, Callable[..., Any]]:
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    }
