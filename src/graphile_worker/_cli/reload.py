"""`--watch`: wait until a file of a worker changes.

The watcher polls: this needs no other package and works on every file system.
"""

import asyncio
import importlib.util
import logging
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from graphile_worker._cli.settings.config_file import CONFIG_PATH, PYPROJECT_PATH
from graphile_worker._cli.settings.layers import Settings
from graphile_worker._cli.settings.resolve import (
    DEFAULT_CRONTAB,
    DEFAULT_TASKS_FOLDER,
    resolve_crontab,
    resolve_tasks_folder,
)
from graphile_worker.errors import ConfigurationError

# The pause between two scans, at least this multiple of the duration of a scan.
CHECK_INTERVAL_SECONDS = 0.3
PAUSE_FACTOR = 5

IGNORED_FOLDERS = frozenset({"__pycache__", "node_modules"})
PACKAGE_FOLDERS = frozenset({"site-packages", "dist-packages"})

# The modification time, size and inode of each file.
FileState = tuple[int, int, int]
FileStates = dict[str, FileState]

logger = logging.getLogger("graphile_worker")


@dataclass(frozen=True, slots=True)
class WatchedPaths:
    """Folders with all their files, folders with their Python files, and single files.

    A path that may be a folder or a file is in both; the scan checks what it is.
    """

    folders: tuple[Path, ...] = ()
    code_folders: tuple[Path, ...] = ()
    files: tuple[Path, ...] = ()

    def scan(self) -> FileStates:
        states: FileStates = {}
        for folder in self.folders:
            states.update(_scan_folder(str(folder)))
        for folder in self.code_folders:
            states.update(_scan_folder(str(folder), suffix=".py"))
        for file in self.files:
            # The state of a folder changes with every compiled file in it.
            with suppress(OSError):
                if file.is_file():
                    states[str(file)] = _read_file_state(file.stat())
        return states


def find_watched_paths(settings: Settings) -> WatchedPaths:
    """Find the tasks, modules, crontab and config files of a worker. They may not exist yet."""
    files = [resolve_crontab(settings) or DEFAULT_CRONTAB]
    files += [CONFIG_PATH, PYPROJECT_PATH] if settings.config is None else [Path(settings.config)]
    app = settings.value("app")
    if app is None:
        tasks = resolve_tasks_folder(settings) or DEFAULT_TASKS_FOLDER
        return WatchedPaths(folders=(tasks,), code_folders=(Path(),), files=(*files, tasks))
    path = _find_module_path(app.partition(":")[0].partition(".")[0])
    paths = (Path(),) if path is None else (Path(), path)
    return WatchedPaths(code_folders=paths, files=(*files, *paths))


class FileWatcher:
    """Waits for changes of the files that the settings name."""

    def __init__(self, settings: Settings, check_interval: float = CHECK_INTERVAL_SECONDS) -> None:
        self._settings = settings
        self._check_interval = check_interval
        self._paths = find_watched_paths(settings)
        self._last_scan = self._paths.scan()
        logger.info("watching %s files", len(self._last_scan))

    async def wait_for_change(self) -> None:
        """Wait until files have changed, and two scans in a row return the same state."""
        previous = self._last_scan
        while True:
            started = time.monotonic()
            current = await asyncio.to_thread(self._paths.scan)
            if current == previous != self._last_scan:
                break
            previous = current
            duration = time.monotonic() - started
            await asyncio.sleep(max(self._check_interval, PAUSE_FACTOR * duration))
        logger.info(
            "files changed, restarting: %s",
            _format_names(list_changed_files(self._last_scan, current)),
        )
        # The worker processes report an invalid config file.
        with suppress(ConfigurationError):
            self._settings = self._settings.reload()
            self._paths = find_watched_paths(self._settings)
        # Scanned before the next processes start, so that no later change is missed.
        self._last_scan = await asyncio.to_thread(self._paths.scan)


def list_changed_files(before: FileStates, now: FileStates) -> list[str]:
    """List the files that are new, deleted or different."""
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def _format_names(names: list[str]) -> str:
    first, more = names[:3], len(names) - 3
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")


def _scan_folder(folder: str, suffix: str = "") -> Iterator[tuple[str, FileState]]:
    """Scan a folder and its subfolders, without hidden ones, packages and virtual environments."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name in IGNORED_FOLDERS:
                continue
            name = entry.name if folder == "." else entry.path
            if entry.is_dir(follow_symlinks=False):
                if not os.path.exists(os.path.join(name, "pyvenv.cfg")):
                    yield from _scan_folder(name, suffix)
            elif name.endswith(suffix):
                # The file may be deleted by now.
                with suppress(OSError):
                    yield name, _read_file_state(entry.stat())


def _read_file_state(stat: os.stat_result) -> FileState:
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _find_module_path(module: str) -> Path | None:
    """Find a module outside the current folder that is not an installed package."""
    with suppress(ImportError, ValueError):
        importlib.invalidate_caches()
        spec = PathFinder.find_spec(module, [str(Path.cwd())]) or importlib.util.find_spec(module)
        path = None if spec is None else _get_spec_path(spec)
        if path is not None and not path.is_relative_to(Path.cwd()):
            return None if PACKAGE_FOLDERS & {*path.parts} else path
    return None


def _get_spec_path(spec: ModuleSpec) -> Path | None:
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.origin and spec.has_location else None
