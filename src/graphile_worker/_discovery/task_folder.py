"""Find the task files of a tasks folder, their identifiers, and whether to trust them.

Any user who can write a task file runs code as the worker. So a file that `TrustChecker` does not
trust is not a task, and neither is a link to a file outside of the folder.
"""

import logging
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from graphile_worker._support.error_format import make_printable
from graphile_worker._support.trust import TrustChecker

FOLDER_NAME_PATTERN = re.compile(r"[A-Za-z0-9_-]+")
FILE_NAME_PATTERN = re.compile(r"([A-Za-z0-9_-]+)(\.[A-Za-z0-9_-]+)*")

# The limit in the database.
MAX_IDENTIFIER_LENGTH = 128

logger = logging.getLogger("graphile_worker")


class TaskFile(NamedTuple):
    """A task file, Python or executable. `path` has all links resolved."""

    identifier: str
    path: Path
    is_python: bool


def find_task_files(root: Path, trust: TrustChecker) -> list[TaskFile]:
    """Find the task files of a folder and its subfolders, in the order of their identifiers.

    Raises:
        ConfigurationError: The folder itself is not trusted.
    """
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
                logger.info("ignored file %s (name too long for a task)", entry)
            elif is_python or _is_executable(path):
                yield TaskFile(identifier, path, is_python)
            else:
                logger.info(
                    "ignored file %s (neither Python nor executable): run chmod +x to make it a "
                    "task",
                    entry,
                )


def _is_task_folder(folder: Path, trust: TrustChecker) -> bool:
    if folder.is_symlink() or not FOLDER_NAME_PATTERN.fullmatch(folder.name):
        logger.info("ignored folder %s", make_printable(folder))
        return False
    if (problem := trust.find_problem(folder)) is not None:
        logger.warning("ignored folder %s (not trusted): %s", make_printable(folder), problem)
        return False
    return True


def _resolve_trusted_file(root: Path, entry: Path, trust: TrustChecker) -> Path | None:
    """Return the path of a file with all links resolved, or None if it is ignored."""
    if not FILE_NAME_PATTERN.fullmatch(entry.name) or not entry.is_file():
        logger.info("ignored file %s", make_printable(entry))
        return None
    path = entry.resolve()
    if not path.is_relative_to(root):
        logger.warning(
            "ignored file %s (a link out of the tasks folder to %s): copy the file, or link to "
            "one inside",
            make_printable(entry),
            make_printable(path),
        )
        return None
    if (problem := trust.find_problem(entry)) is not None:
        logger.warning("ignored file %s (not trusted): %s", make_printable(entry), problem)
        return None
    return path


def _is_executable(path: Path) -> bool:
    """Return whether its owner may run the file, as Graphile Worker for Node checks.

    False on Windows.
    """
    return os.name != "nt" and bool(path.stat().st_mode & stat.S_IXUSR)


def _choose_file(files: Sequence[TaskFile]) -> TaskFile:
    """Choose one of the files with the same identifier: the first Python file, else the first."""
    [chosen, *ignored] = sorted(files, key=lambda file: not file.is_python)
    if ignored:
        logger.warning(
            "task %s is defined by %s, ignored %s",
            chosen.identifier,
            make_printable(chosen.path),
            ", ".join(make_printable(file.path) for file in ignored),
        )
    return chosen
