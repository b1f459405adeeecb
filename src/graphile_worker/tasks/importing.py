"""Import task files as modules, and locate a task for another process."""

import importlib
import importlib.util
import sys
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

from graphile_worker._support.lazy_dataclass import LazyDataclass
from graphile_worker.errors import ConfigurationError, TaskLoadError
from graphile_worker.tasks.source_only import SourceOnlyLoader
from graphile_worker.tasks.task import Task

# Prefix of the modules of a tasks folder, and name of the module of a script.
FOLDER_MODULE_PREFIX = "graphile_worker_tasks."
SCRIPT_MODULE_NAME = "__graphile_worker_main__"


def import_file(file: Path, name: str) -> ModuleType:
    """Import a file as the module of this name.

    Raises:
        TaskLoadError: The import raises an error, which is the cause.
    """
    # An explicit loader, because the target of a link may have any suffix.
    loader = SourceOnlyLoader(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and annotations look up their module while it runs.
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
    """Import a module by name.

    Raises:
        ModuleNotFoundError: The module does not exist.
        TaskLoadError: The import raises an error, which is the cause.
    """
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and _is_module_missing(name, error):
            raise
        if isinstance(error, SystemExit):
            raise TaskLoadError(f"{name} exited the program during its import") from error
        raise TaskLoadError(f"{name} could not be imported: {error!r}") from error


def _is_module_missing(name: str, error: ModuleNotFoundError) -> bool:
    """Return whether this module or its package is missing, not one that it imports."""
    return bool(error.name) and (name == error.name or name.startswith(f"{error.name}."))


class TaskLocation(LazyDataclass):
    """The module and name of a task, and its file if the module cannot be imported by name."""

    module: str
    name: str
    file: str | None = None

    def load(self) -> Task[..., Any]:
        """Import the module if necessary, and return the task.

        Raises:
            TaskLoadError: The name is not a task in this process.
        """
        task = reduce(getattr, self.name.split("."), self._import_module())
        if not isinstance(task, Task):
            raise TaskLoadError(f"{self.module}.{self.name} is not a task in this process")
        return task

    def _import_module(self) -> Any:
        if self.file is None:
            return import_module(self.module)
        return sys.modules.get(self.module) or import_file(Path(self.file), self.module)


def locate_task(task: Task[..., Any]) -> TaskLocation:
    """Return where another process finds this task.

    Raises:
        ConfigurationError: Another process cannot find it.
    """
    name = task.fn.__qualname__
    module = sys.modules.get(task.fn.__module__)
    try:
        attribute = reduce(getattr, name.split("."), module)
    except AttributeError:
        attribute = None
    if module is None or getattr(attribute, "fn", None) is not task.fn:
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
        raise ConfigurationError("a task that runs in a process must be defined in a file")
    return TaskLocation(SCRIPT_MODULE_NAME, name, str(Path(module.__file__).resolve()))
