"""Find tasks: in a folder of files, one each, named by where they lie; or in a module's app.

And find cron items: in a crontab file or text, in code, or beside the tasks of an app.
"""

import importlib
import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from graphile_worker.crontab import ParsedCronItem, parse_crontab
from graphile_worker.crontab.items import check_identifiers
from graphile_worker.errors import ConfigurationError, TaskLoadError
from graphile_worker.executables import Executable
from graphile_worker.folder import TaskFile, task_files
from graphile_worker.options import ExecutableOptions
from graphile_worker.tasks import Task, Tasks, positional_task
from graphile_worker.tasks.importing import FOLDER_MODULES, imported_file

logger = logging.getLogger("graphile_worker")


def load_tasks(
    path: Path, executables: ExecutableOptions | None = None
) -> dict[str, Task[..., Any]]:
    """The tasks of a folder, or all functions of one file."""
    if path.is_file():
        return tasks_of(_functions(_imported(path, path.stem)))
    if not path.is_dir():
        raise ConfigurationError(f"there is no tasks folder at {path}")
    found = {}
    for file in task_files(path):
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


def load_crontab(path: Path) -> list[ParsedCronItem]:
    """The items of a crontab file."""
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise ConfigurationError(f"the crontab {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"the crontab {path} is not UTF-8: {error.reason}") from error
    return parse_crontab(text.removeprefix("\ufeff"), source=str(path))


def cron_items_of(
    tasks: object,
    *,
    crontab: str | None = None,
    crontab_file: Path | str | None = None,
    cron_items: Sequence[ParsedCronItem] | None = None,
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
        given = load_crontab(Path(crontab_file))
    of_app = tasks.cron_items() if isinstance(tasks, Tasks) else []
    for item in given:
        if not isinstance(item, ParsedCronItem):
            raise ConfigurationError(
                f"cron_items come from parse_cron_items() or parse_crontab(), got {item!r}"
            )
    check_identifiers([*of_app, *given])
    if not of_app and not given and cron_items is None:
        return None
    return lambda: [*of_app, *given]


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
    hint = f"write {module_name}:{apps[0]}" if apps else "nothing in it is an App"
    raise ConfigurationError(f"there is no app {attribute or 'app'!r} in {module_name}: {hint}")


def _module(path: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(
                f"--app {path}: there is no module {error.name!r}; write package.module:app, as "
                "seen from the current directory"
            ) from error
        raise TaskLoadError(f"{name} could not be imported: {error!r}") from error
    except Exception as error:
        raise TaskLoadError(f"{name} could not be imported: {error!r}") from error
    except SystemExit as error:
        raise TaskLoadError(f"{name} ended the program while it was imported") from error


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
