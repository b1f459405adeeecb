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

from graphile_worker.cli.config_file import OWN, PROJECT
from graphile_worker.cli.settings import Settings
from graphile_worker.cli.sources import CRONTAB, FOLDER, crontab_file, tasks_folder
from graphile_worker.errors import ConfigurationError

# Seconds between two looks, or so many times what one takes, where there are very many files.
LOOK_EVERY = 0.3
REST = 5

# Folders with code of others, or with nothing to read.
NOT_OURS = frozenset({"__pycache__", "node_modules"})
INSTALLED = frozenset({"site-packages", "dist-packages"})

# When each file was last written, how long it is, and which one it is.
Look = dict[str, tuple[int, int, int]]

logger = logging.getLogger("graphile_worker")


@dataclass(frozen=True, slots=True)
class Watched:
    """Folders of which every file counts, folders of which Python files do, and single files.

    What may be a folder or a file stands under both: it is looked at as what it is.
    """

    folders: tuple[Path, ...] = ()
    code: tuple[Path, ...] = ()
    files: tuple[Path, ...] = ()

    def look(self) -> Look:
        """What is there now."""
        found: Look = {}
        for folder in self.folders:
            found.update(_below(str(folder)))
        for folder in self.code:
            found.update(_below(str(folder), ending=".py"))
        for file in self.files:
            # A folder changes with every file that is compiled in it.
            with suppress(OSError):
                if file.is_file():
                    found[str(file)] = _state(file.stat())
        return found


def watched_by(settings: Settings) -> Watched:
    """What a worker with these settings is made from; it need not be there yet."""
    files = [crontab_file(settings) or CRONTAB]
    files += [OWN, PROJECT] if settings.config is None else [Path(settings.config)]
    app = settings.value("app")
    if app is None:
        tasks = tasks_folder(settings) or FOLDER
        return Watched(folders=(tasks,), code=(Path(),), files=(*files, tasks))
    top = app.partition(":")[0].partition(".")[0]
    place = _place_of(top)
    here = (Path(),) if place is None else (Path(), place)
    return Watched(code=here, files=(*files, *here))


class Watcher:
    """Says when something has changed among the files of the settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._watched = watched_by(settings)
        self._known = self._watched.look()
        logger.info("watching %s files", len(self._known))

    async def change(self) -> None:
        """Wait until files have changed and stay as they are."""
        seen = self._known
        while True:
            now, cost = await asyncio.to_thread(_timed, self._watched.look)
            if now == seen != self._known:
                break
            # Somebody may still be writing.
            seen = now
            await asyncio.sleep(max(LOOK_EVERY, REST * cost))
        logger.info("changed: %s", _named(changed(self._known, now)))
        self._renew()
        # By a look that is older than the code of whoever is started now.
        self._known = await asyncio.to_thread(self._watched.look)

    def _renew(self) -> None:
        # A file that makes no sense is a matter of the children, which say so.
        with suppress(ConfigurationError):
            self._settings = self._settings.again()
            self._watched = watched_by(self._settings)


def changed(before: Look, now: Look) -> list[str]:
    """The files that are new, gone or different."""
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def _named(names: list[str]) -> str:
    shown, more = names[:3], len(names) - 3
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _timed(look: Callable[[], Look]) -> tuple[Look, float]:
    began = time.monotonic()
    return look(), time.monotonic() - began


def _below(folder: str, ending: str = "") -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Files in a folder and in those below it, without what others have put there."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name in NOT_OURS:
                continue
            name = entry.name if folder == "." else entry.path
            if entry.is_dir(follow_symlinks=False):
                if not os.path.exists(os.path.join(name, "pyvenv.cfg")):
                    yield from _below(name, ending)
            elif name.endswith(ending):
                # It may be gone by now.
                with suppress(OSError):
                    yield name, _state(entry.stat())


def _state(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_mtime_ns, found.st_size, found.st_ino


def _place_of(module: str) -> Path | None:
    """The folder or the file of a module that lies neither here nor among installed packages."""
    with suppress(ImportError, ValueError):
        importlib.invalidate_caches()
        spec = PathFinder.find_spec(module, [str(Path.cwd())]) or importlib.util.find_spec(module)
        place = None if spec is None else _of(spec)
        if place is None or place.is_relative_to(Path.cwd()) or INSTALLED & {*place.parts}:
            return None
        return place
    return None


def _of(spec: ModuleSpec) -> Path | None:
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.origin and spec.has_location else None
