"""The files of a tasks folder: which are tasks, what they are called, and which are not trusted.

Whoever may write a task runs code as the worker. So a file that anyone may change is no task, nor
is one in a folder that anyone may change, nor one that a link fetches from elsewhere.
"""

import logging
import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from graphile_worker.logs import printable

FOLDER_NAME = re.compile(r"[A-Za-z0-9_-]+")
FILE_NAME = re.compile(r"([A-Za-z0-9_-]+)(\.[A-Za-z0-9_-]+)*")

# As in the database.
LONGEST_IDENTIFIER = 128

logger = logging.getLogger("graphile_worker")


class TaskFile(NamedTuple):
    """A file that is a task, either Python or an executable; `path` is where it really lies."""

    identifier: str
    path: Path
    is_python: bool


def task_files(root: Path) -> list[TaskFile]:
    """The file of each task in a folder and the folders in it, by their identifiers."""
    root = root.resolve()
    if _anyone_may_write(root):
        logger.warning(
            "anyone may put tasks into the folder %s: type %s", printable(root), _remedy(root)
        )
    groups: dict[str, list[TaskFile]] = {}
    for each in _candidates(root, root, ()):
        groups.setdefault(each.identifier, []).append(each)
    return [_taken(groups[identifier]) for identifier in sorted(groups)]


def _candidates(root: Path, folder: Path, inside: tuple[str, ...]) -> Iterator[TaskFile]:
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("__"):
            continue
        if entry.is_dir():
            if _is_task_folder(entry):
                yield from _candidates(root, entry, (*inside, entry.name))
        elif (path := _trusted(root, entry)) is not None:
            identifier = "/".join((*inside, entry.name.partition(".")[0]))
            is_python = entry.suffix == ".py"
            if len(identifier) > LONGEST_IDENTIFIER:
                logger.info("ignored file %s, whose name is too long for a task", entry)
            elif is_python or _is_executable(path):
                yield TaskFile(identifier, path, is_python)
            else:
                logger.info("ignored file %s, which is neither Python nor executable", entry)


def _is_task_folder(folder: Path) -> bool:
    if folder.is_symlink() or not FOLDER_NAME.fullmatch(folder.name):
        logger.info("ignored folder %s", printable(folder))
        return False
    if _anyone_may_write(folder):
        logger.warning(
            "ignored folder %s, into which anyone may put tasks: type %s",
            printable(folder),
            _remedy(folder),
        )
        return False
    return True


def _trusted(root: Path, entry: Path) -> Path | None:
    """Where a file with a proper name lies; None if it is not for us to load."""
    if not FILE_NAME.fullmatch(entry.name) or not entry.is_file():
        logger.info("ignored file %s", printable(entry))
        return None
    path = entry.resolve()
    if not path.is_relative_to(root):
        logger.warning(
            "ignored file %s, a link out of the tasks folder to %s: copy it, or link to a file "
            "inside",
            printable(entry),
            printable(path),
        )
        return None
    for each in _up_to(root, path):
        if _anyone_may_write(each):
            logger.warning(
                "ignored file %s, as anyone may change it: type %s",
                printable(entry),
                _remedy(each),
            )
            return None
    return path


def _up_to(root: Path, path: Path) -> Iterable[Path]:
    """The file, and the folders that it lies in below the root."""
    folders = path.relative_to(root).parents
    return [path, *(root / folder for folder in folders if folder != Path())]


def _anyone_may_write(path: Path) -> bool:
    # Also with the sticky bit: that protects the files of others, but a new file is a new task.
    return os.name != "nt" and bool(path.stat().st_mode & stat.S_IWOTH)


def _is_executable(path: Path) -> bool:
    """May its owner run it? As in the reference, which looks no further, and not on Windows."""
    return os.name != "nt" and bool(path.stat().st_mode & stat.S_IXUSR)


def _taken(files: Sequence[TaskFile]) -> TaskFile:
    """One of the files that have the same identifier: the first of Python, else the first."""
    [taken, *others] = sorted(files, key=lambda file: not file.is_python)
    if others:
        logger.warning(
            "task %s is %s; ignored %s, which would be the same task",
            taken.identifier,
            printable(taken.path),
            ", ".join(printable(other.path) for other in others),
        )
    return taken


def _remedy(path: Path) -> str:
    return f"chmod o-w {shlex.quote(printable(path))}"
