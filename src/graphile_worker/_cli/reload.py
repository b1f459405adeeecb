"""Watching: has a file changed that a worker was made from?

By looking again and again: that needs no other package, and works on every file system.
"""

import asyncio
import importlib.util
import logging
import os
import time
from collections.abc import Callable, Iterator
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

# Seconds between two looks, or so many times what one takes, where there are very many files.
CHECK_INTERVAL_SECONDS = 0.3
PAUSE_FACTOR = 5

# Folders with code of others, or with nothing to read.
IGNORED_FOLDERS = frozenset({"__pycache__", "node_modules"})
PACKAGE_FOLDERS = frozenset({"site-packages", "dist-packages"})

# When each file was last written, how long it is, and which one it is.
FileStates = dict[str, tuple[int, int, int]]

logger = logging.getLogger("graphile_worker")


@dataclass(frozen=True, slots=True)
class WatchedPaths:
    """Folders of which every file counts, folders of which Python files do, and single files.

    What may be a folder or a file stands under both: it is looked at as what it is.
    """

    folders: tuple[Path, ...] = ()
    code_folders: tuple[Path, ...] = ()
    files: tuple[Path, ...] = ()

    def scan(self) -> FileStates:
        """What is there now."""
        found: FileStates = {}
        for folder in self.folders:
            found.update(_scan_folder(str(folder)))
        for folder in self.code_folders:
            found.update(_scan_folder(str(folder), suffix=".py"))
        for file in self.files:
            # A folder changes with every file that is compiled in it.
            with suppress(OSError):
                if file.is_file():
                    found[str(file)] = _read_file_state(file.stat())
        return found


def find_watched_paths(settings: Settings) -> WatchedPaths:
    """What a worker with these settings is made from; it need not be there yet."""
    files = [resolve_crontab(settings) or DEFAULT_CRONTAB]
    files += [CONFIG_PATH, PYPROJECT_PATH] if settings.config is None else [Path(settings.config)]
    app = settings.value("app")
    if app is None:
        tasks = resolve_tasks_folder(settings) or DEFAULT_TASKS_FOLDER
        return WatchedPaths(folders=(tasks,), code_folders=(Path(),), files=(*files, tasks))
    top = app.partition(":")[0].partition(".")[0]
    place = _find_module_path(top)
    here = (Path(),) if place is None else (Path(), place)
    return WatchedPaths(code_folders=here, files=(*files, *here))


class FileWatcher:
    """Says when something has changed among the files of the settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._paths = find_watched_paths(settings)
        self._last_scan = self._paths.scan()
        logger.info("watching %s files", len(self._last_scan))

    async def wait_for_change(self) -> None:
        """Wait until files have changed and stay as they are."""
        seen = self._last_scan
        while True:
            now, cost = await asyncio.to_thread(_time_scan, self._paths.scan)
            if now == seen != self._last_scan:
                break
            # Somebody may still be writing.
            seen = now
            await asyncio.sleep(max(CHECK_INTERVAL_SECONDS, PAUSE_FACTOR * cost))
        logger.info("changed: %s", _format_names(list_changed_files(self._last_scan, now)))
        self._reload_settings()
        # By a look that is older than the code of whoever is started now.
        self._last_scan = await asyncio.to_thread(self._paths.scan)

    def _reload_settings(self) -> None:
        # A file that makes no sense is a matter of the children, which say so.
        with suppress(ConfigurationError):
            self._settings = self._settings.reload()
            self._paths = find_watched_paths(self._settings)


def list_changed_files(before: FileStates, now: FileStates) -> list[str]:
    """The files that are new, gone or different."""
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def _format_names(names: list[str]) -> str:
    shown, more = names[:3], len(names) - 3
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _time_scan(scan: Callable[[], FileStates]) -> tuple[FileStates, float]:
    began = time.monotonic()
    return scan(), time.monotonic() - began


def _scan_folder(folder: str, suffix: str = "") -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Files in a folder and in those below it, without what others have put there."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name in IGNORED_FOLDERS:
                continue
            name = entry.name if folder == "." else entry.path
            if entry.is_dir(follow_symlinks=False):
                if not os.path.exists(os.path.join(name, "pyvenv.cfg")):
                    yield from _scan_folder(name, suffix)
            elif name.endswith(suffix):
                # It may be gone by now.
                with suppress(OSError):
                    yield name, _read_file_state(entry.stat())


def _read_file_state(stat: os.stat_result) -> tuple[int, int, int]:
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _find_module_path(module: str) -> Path | None:
    """The folder or the file of a module that lies neither here nor among installed packages."""
    with suppress(ImportError, ValueError):
        importlib.invalidate_caches()
        spec = PathFinder.find_spec(module, [str(Path.cwd())]) or importlib.util.find_spec(module)
        place = None if spec is None else _get_spec_path(spec)
        if place is None or place.is_relative_to(Path.cwd()) or PACKAGE_FOLDERS & {*place.parts}:
            return None
        return place
    return None


def _get_spec_path(spec: ModuleSpec) -> Path | None:
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.origin and spec.has_location else None
