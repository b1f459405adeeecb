"""The files of a tasks folder: which are tasks, what they are called, and which are not trusted.

Any user who can write a task runs code as the worker. So a file that `TrustChecker` doubts is not a
task, nor is a file that a link fetches from elsewhere.
"""

import logging
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from graphile_worker._support.logs import make_printable
from graphile_worker._support.trust import TrustChecker

FOLDER_NAME_PATTERN = re.compile(r"[A-Za-z0-9_-]+")
FILE_NAME_PATTERN = re.compile(r"([A-Za-z0-9_-]+)(\.[A-Za-z0-9_-]+)*")

# As in the database.
MAX_IDENTIFIER_LENGTH = 128

logger = logging.getLogger("graphile_worker")


class TaskFile(NamedTuple):
    """A file that is a task, either Python or an executable; `path` is where it really lies."""

    identifier: str
    path: Path
    is_python: bool


def find_task_files(root: Path, trust: TrustChecker | None = None) -> list[TaskFile]:
    """The file of each task in a folder and the folders in it, by their identifiers.

    Raises ConfigurationError if the folder itself is not trusted.
    """
    trust = trust or TrustChecker(root)
    trust.check("the tasks folder")
    root = root.resolve()
    groups: dict[str, list[TaskFile]] = {}
    for each in _iter_candidates(root, root, (), trust):
        groups.setdefault(each.identifier, []).append(each)
    trust.warn_group_writable()
    return [_choose_file(groups[identifier]) for identifier in sorted(groups)]


def _iter_candidates(
    root: Path, folder: Path, parents: tuple[str, ...], trust: TrustChecker
) -> Iterator[TaskFile]:
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("__"):
            continue
        if entry.is_dir():
            if _is_task_folder(entry, trust):
                yield from _iter_candidates(root, entry, (*parents, entry.name), trust)
        elif (path := _resolve_trusted_file(root, entry, trust)) is not None:
            identifier = "/".join((*parents, entry.name.partition(".")[0]))
            is_python = entry.suffix == ".py"
            if len(identifier) > MAX_IDENTIFIER_LENGTH:
                logger.info("ignored file %s, whose name is too long for a task", entry)
            elif is_python or _is_executable(path):
                yield TaskFile(identifier, path, is_python)
            else:
                logger.info(
                    "ignored file %s, which is neither Python nor executable: a program becomes a "
                    "task with chmod +x",
                    entry,
                )


def _is_task_folder(folder: Path, trust: TrustChecker) -> bool:
    if folder.is_symlink() or not FOLDER_NAME_PATTERN.fullmatch(folder.name):
        logger.info("ignored folder %s", make_printable(folder))
        return False
    if (doubt := trust.find_problem(folder)) is not None:
        logger.warning("ignored folder %s, which is not trusted: %s", make_printable(folder), doubt)
        return False
    return True


def _resolve_trusted_file(root: Path, entry: Path, trust: TrustChecker) -> Path | None:
    """Where a file with a proper name lies; None if it is not for us to load."""
    if not FILE_NAME_PATTERN.fullmatch(entry.name) or not entry.is_file():
        logger.info("ignored file %s", make_printable(entry))
        return None
    path = entry.resolve()
    if not path.is_relative_to(root):
        logger.warning(
            "ignored file %s, a link out of the tasks folder to %s: copy it, or link to a file "
            "inside",
            make_printable(entry),
            make_printable(path),
        )
        return None
    if (doubt := trust.find_problem(entry)) is not None:
        logger.warning("ignored file %s, which is not trusted: %s", make_printable(entry), doubt)
        return None
    return path


def _is_executable(path: Path) -> bool:
    """May its owner run it? As in the reference, which looks no further, and not on Windows."""
    return os.name != "nt" and bool(path.stat().st_mode & stat.S_IXUSR)


def _choose_file(files: Sequence[TaskFile]) -> TaskFile:
    """One of the files that have the same identifier: the first of Python, else the first."""
    [taken, *others] = sorted(files, key=lambda file: not file.is_python)
    if others:
        logger.warning(
            "task %s is %s; ignored %s, which would be the same task",
            taken.identifier,
            make_printable(taken.path),
            ", ".join(make_printable(other.path) for other in others),
        )
    return taken
