"""Where tasks stand: files imported as modules, and how another process finds the same task."""

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

from graphile_worker.errors import ConfigurationError, TaskLoadError
from graphile_worker.tasks.source_only import SourceOnlyLoader
from graphile_worker.tasks.task import Task

# Modules of a tasks folder have this before their names, and those of scripts this instead.
FOLDER_MODULE_PREFIX = "graphile_worker_tasks."
SCRIPT_MODULE_NAME = "__graphile_worker_main__"


def import_file(file: Path, name: str) -> ModuleType:
    """The module that a file makes, under a name of its own."""
    # Given the loader, as the file behind a link may have any name.
    loader = SourceOnlyLoader(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Under its name while it runs: dataclasses and annotations look their module up.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        raise TaskLoadError(f"{file} could not be imported: {error!r}") from error
    return module


def import_module(name: str) -> ModuleType:
    """The module of that name; what keeps it from being imported is the cause of a TaskLoadError.

    Raises ModuleNotFoundError if there is no such module.
    """
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and _is_module_missing(name, error):
            raise
        if isinstance(error, SystemExit):
            raise TaskLoadError(f"{name} ended the program while it was imported") from error
        raise TaskLoadError(f"{name} could not be imported: {error!r}") from error


def _is_module_missing(name: str, error: ModuleNotFoundError) -> bool:
    """Is it this module that is not there, or a package around it, and not one that it imports?"""
    return bool(error.name) and (name == error.name or name.startswith(f"{error.name}."))


@dataclass(frozen=True, slots=True)
class TaskLocation:
    """A task by the name of its module and its name there; by a file where no import finds it."""

    module: str
    name: str
    file: str | None = None

    def load(self) -> Task[..., Any]:
        """The task that stands there, its module imported if need be."""
        found = reduce(getattr, self.name.split("."), self._import_module())
        if not isinstance(found, Task):
            raise TaskLoadError(f"{self.module}.{self.name} is no task in this process")
        return found

    def _import_module(self) -> Any:
        if self.file is None:
            return import_module(self.module)
        return sys.modules.get(self.module) or import_file(Path(self.file), self.module)


def locate_task(task: Task[..., Any]) -> TaskLocation:
    """Where another process finds this task; refuses one that it could not find."""
    name = task.fn.__qualname__
    module = sys.modules.get(task.fn.__module__)
    try:
        found = reduce(getattr, name.split("."), module)
    except AttributeError:
        found = None
    if module is None or getattr(found, "fn", None) is not task.fn:
        raise ConfigurationError(
            f"task {task.identifier!r} runs in a process, which must find it under the name "
            f"{task.fn.__module__}.{name}: decorate the function where it is defined"
        )
    return _build_location(module, name)


def _build_location(module: ModuleType, name: str) -> TaskLocation:
    if module.__name__.startswith(FOLDER_MODULE_PREFIX):
        return TaskLocation(module.__name__, name, module.__file__)
    if module.__name__ != "__main__":
        return TaskLocation(module.__name__, name)
    if module.__spec__ is not None:
        # python -m package.module
        return TaskLocation(module.__spec__.name, name)
    if module.__file__ is None:
        raise ConfigurationError("a task that runs in a process must stand in a file")
    return TaskLocation(SCRIPT_MODULE_NAME, name, str(Path(module.__file__).resolve()))
