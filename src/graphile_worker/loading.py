"""Find tasks: in a folder of files, one each, named by where they lie; or in a module's app.

And find cron items: in a crontab file or text, in code, or beside the tasks of an app.
"""

import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from graphile_worker.crontab import ParsedCronItem, parse_crontab
from graphile_worker.crontab.items import check_identifiers
from graphile_worker.errors import ConfigurationError
from graphile_worker.executables import Executable
from graphile_worker.folder import TaskFile, task_files
from graphile_worker.options import ExecutableOptions
from graphile_worker.tasks import Task, Tasks, positional_task
from graphile_worker.tasks.importing import FOLDER_MODULES, imported_file, imported_module
from graphile_worker.tasks.router import completed_item
from graphile_worker.tasks.source_only import read_as_source
from graphile_worker.trust import Trust

logger = logging.getLogger("graphile_worker")


def load_tasks(
    path: Path,
    executables: ExecutableOptions | None = None,
    *,
    allow_unsafe: bool = False,
) -> dict[str, Task[..., Any]]:
    """The tasks of a folder, or all functions of one file."""
    if path.is_file():
        _check(path, "the task file", allow_unsafe)
        return tasks_of(_functions(_imported(path, path.stem)))
    if not path.is_dir():
        raise ConfigurationError(
            f"there is no tasks folder at {path}: make it, or name another one with --tasks"
        )
    found = {}
    trust = Trust(path, allow_unsafe=allow_unsafe)
    files = task_files(path, trust)
    read_as_source(path, trust)
    for file in files:
        task = _task_of(file, executables or ExecutableOptions())
        if task is not None:
            found[file.identifier] = task
    return found


def tasks_of(functions: Mapping[str, Callable[..., Any]]) -> dict[str, Task[..., Any]]:
    """A mapping of names to functions as tasks, called as the reference calls its own."""
    return {
        name: function.named(name)
        if isinstance(function, Task)
        else positional_task(name, function)
        for name, function in functions.items()
    }


def load_crontab(path: Path, *, allow_unsafe: bool = False) -> list[ParsedCronItem]:
    """The items of a crontab file."""
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise ConfigurationError(f"the crontab {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"the crontab {path} is not UTF-8: {error.reason}") from error
    _check(path, "the crontab", allow_unsafe)
    return parse_crontab(text.removeprefix("\ufeff"), source=str(path))


def cron_items_of(
    tasks: object,
    *,
    crontab: str | None = None,
    crontab_file: Path | str | None = None,
    cron_items: Sequence[ParsedCronItem] | None = None,
    allow_unsafe: bool = False,
) -> Callable[[], list[ParsedCronItem]] | None:
    """What says, each time anew, which items there are: of an app, and of one source beside it.

    `cron_items` may change while a worker runs. None: there are none, and will be none.
    """
    sources = (crontab, crontab_file, cron_items)
    if sum(source is not None for source in sources) > 1:
        raise ConfigurationError("give one of crontab, crontab_file and cron_items")
    given = [] if cron_items is None else cron_items
    if crontab is not None:
        given = parse_crontab(crontab)
    elif crontab_file is not None:
        given = load_crontab(Path(crontab_file), allow_unsafe=allow_unsafe)
    of_app = tasks.cron_items() if isinstance(tasks, Tasks) else []
    for item in given:
        if not isinstance(item, ParsedCronItem):
            raise ConfigurationError(
                f"cron_items come from parse_cron_items() or parse_crontab(), got {item!r}"
            )
    check_identifiers([*of_app, *given])
    if not of_app and not given and cron_items is None:
        return None
    if not isinstance(tasks, Tasks):
        return lambda: [*of_app, *given]
    for item in given:
        if (task := tasks.find(item.task)) is not None:
            completed_item(task, item)
    return lambda: [*of_app, *(_completed(tasks, item) for item in given)]


def _completed(tasks: Tasks[Any], item: ParsedCronItem) -> ParsedCronItem:
    """The item with the options of its task. Its payload is not checked while a worker runs."""
    task = tasks.find(item.task)
    return item if task is None else replace(item, spec=task.options.completed(item.spec))


def load_app(path: str) -> Tasks[Any]:
    """The app at `module:attribute`, the attribute being `app` unless it is given."""
    module_name, _, attribute = path.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigurationError(
            f"--app {path}: there is no module {module_name!r}; write package.module:app"
        )
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        # As with python -m: a program finds its own modules.
        sys.path.insert(0, str(Path.cwd()))
    module = _module(path, module_name)
    found = getattr(module, attribute or "app", None)
    if isinstance(found, Tasks):
        return found
    apps = [name for name, value in vars(module).items() if isinstance(value, Tasks)]
    hint = (
        f"write {module_name}:{apps[0]}" if apps else "nothing in it is an App, write app = App()"
    )
    raise ConfigurationError(f"there is no app {attribute or 'app'!r} in {module_name}: {hint}")


def _module(path: str, name: str) -> ModuleType:
    try:
        return imported_module(name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"--app {path}: there is no module {error.name!r}; write package.module:app, as "
            "seen from the current directory"
        ) from error


def _check(path: Path, what: str, allow_unsafe: bool) -> None:
    trust = Trust(path, allow_unsafe=allow_unsafe)
    trust.check(what)
    trust.warn_of_groups()


def _task_of(file: TaskFile, executables: ExecutableOptions) -> Task[..., Any] | None:
    if file.is_python:
        return _python_task(file.identifier, file.path)
    return positional_task(file.identifier, Executable(file.identifier, file.path, executables))


def _python_task(identifier: str, file: Path) -> Task[..., Any] | None:
    module = _imported(file, identifier)
    for name in ("task", identifier.rpartition("/")[2]):
        function = getattr(module, name, None)
        if inspect.isfunction(function):
            return positional_task(identifier, function)
    made = [value for value in vars(module).values() if isinstance(value, Task)]
    if len(made) == 1:
        return made[0].named(identifier)
    logger.warning("%s holds no function named task or like the file, nor one task object", file)
    return None


def _imported(file: Path, identifier: str) -> ModuleType:
    return imported_file(file, FOLDER_MODULES + identifier.replace("/", "."))


def _functions(module: ModuleType) -> dict[str, Callable[..., Any]]:
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    }
