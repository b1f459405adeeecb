"""The files of a tasks folder: which are tasks, what they are called, and which are not trusted.

Any user who can write a task runs code as the worker. So a file that `Trust` doubts is not a task,
nor is a file that a link fetches from elsewhere.
"""

import logging
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from graphile_worker.logs import printable
from graphile_worker.trust import Trust

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


def task_files(root: Path, trust: Trust | None = None) -> list[TaskFile]:
    """The file of each task in a folder and the folders in it, by their identifiers.

    Raises ConfigurationError if the folder itself is not trusted.
    """
    trust = trust or Trust(root)
    trust.check("the tasks folder")
    root = root.resolve()
    groups: dict[str, list[TaskFile]] = {}
    for each in _candidates(root, root, (), trust):
        groups.setdefault(each.identifier, []).append(each)
    trust.warn_of_groups()
    return [_taken(groups[identifier]) for identifier in sorted(groups)]


def _candidates(
    root: Path, folder: Path, inside: tuple[str, ...], trust: Trust
) -> Iterator[TaskFile]:
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("__"):
            continue
        if entry.is_dir():
            if _is_task_folder(entry, trust):
                yield from _candidates(root, entry, (*inside, entry.name), trust)
        elif (path := _trusted(root, entry, trust)) is not None:
            identifier = "/".join((*inside, entry.name.partition(".")[0]))
            is_python = entry.suffix == ".py"
            if len(identifier) > LONGEST_IDENTIFIER:
                logger.info("ignored file %s, whose name is too long for a task", entry)
            elif is_python or _is_executable(path):
                yield TaskFile(identifier, path, is_python)
            else:
                logger.info(
                    "ignored file %s, which is neither Python nor executable: a program becomes a "
                    "task with chmod +x",
                    entry,
                )


def _is_task_folder(folder: Path, trust: Trust) -> bool:
    if folder.is_symlink() or not FOLDER_NAME.fullmatch(folder.name):
        logger.info("ignored folder %s", printable(folder))
        return False
    if (doubt := trust.doubt(folder)) is not None:
        logger.warning("ignored folder %s, which is not trusted: %s", printable(folder), doubt)
        return False
    return True


def _trusted(root: Path, entry: Path, trust: Trust) -> Path | None:
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
    if (doubt := trust.doubt(entry)) is not None:
        logger.warning("ignored file %s, which is not trusted: %s", printable(entry), doubt)
        return None
    return path


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
