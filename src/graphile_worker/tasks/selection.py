"""Choose the tasks that a worker runs, by their identifiers or patterns of them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from graphile_worker._support.text import suggest
from graphile_worker.errors import ConfigurationError

T = TypeVar("T")


def select_tasks(
    tasks: Mapping[str, T], only: Sequence[str] | None, excluded: Sequence[str]
) -> Mapping[str, T]:
    """Return the tasks that a worker runs: this mapping itself if it runs all.

    Raises:
        ConfigurationError: A name or a pattern matches no task, or no task is left.
    """
    if only is None and not excluded:
        return tasks
    chosen = {*tasks} if only is None else find_tasks("only_tasks", only, tasks)
    chosen -= find_tasks("except_tasks", excluded, tasks)
    if tasks and not chosen:
        raise ConfigurationError("no tasks left to run. Exclude fewer tasks.")
    return {identifier: task for identifier, task in tasks.items() if identifier in chosen}


def find_tasks(option: str, names: Iterable[str], identifiers: Collection[str]) -> set[str]:
    """Return the identifiers that are among these names or match one of these patterns.

    Raises:
        ConfigurationError: A name or a pattern matches no task.
    """
    found: set[str] = set()
    for name in names:
        matches = _match(name, identifiers)
        if not matches:
            known = ", ".join(sorted(identifiers)) or "none"
            raise ConfigurationError(
                f"{option}: unknown task {name!r}{suggest(name, identifiers)} Known tasks: {known}"
            )
        found.update(matches)
    return found


def match_tasks(
    identifiers: Collection[str], only: Iterable[str] | None, excluded: Iterable[str]
) -> list[str]:
    """Return those of the identifiers that a worker with these options runs."""
    chosen = {*identifiers} if only is None else _match_any(only, identifiers)
    chosen -= _match_any(excluded, identifiers)
    return [identifier for identifier in identifiers if identifier in chosen]


def has_pattern(names: Iterable[str]) -> bool:
    return any(character in name for name in names for character in "*?[")


def _match_any(names: Iterable[str], identifiers: Collection[str]) -> set[str]:
    return {identifier for name in names for identifier in _match(name, identifiers)}


def _match(name: str, identifiers: Collection[str]) -> list[str]:
    # An identifier that looks like a pattern is that identifier.
    if name in identifiers:
        return [name]
    return [identifier for identifier in identifiers if fnmatchcase(identifier, name)]
