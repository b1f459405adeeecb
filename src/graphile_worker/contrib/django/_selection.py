"""Which tasks a worker runs: `--only`, `--except`, `--queue` and `--exclude-queue`."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from graphile_worker._settings.definitions import SETTINGS
from graphile_worker._settings.values import parse_text
from graphile_worker._support.text import suggest
from graphile_worker.contrib.django._app import DjangoApp
from graphile_worker.contrib.django._registry import find_registered, serve_queues
from graphile_worker.errors import ConfigurationError
from graphile_worker.tasks import Task
from graphile_worker.tasks.selection import find_tasks


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSelection:
    """The choice of a worker, by identifiers of tasks and queues of `django.tasks`."""

    only: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    excluded_queues: tuple[str, ...] = ()

    @classmethod
    def from_text(cls, text: str) -> "TaskSelection":
        """Read what `to_text` wrote."""
        return cls(**{name: tuple(values) for name, values in json.loads(text).items()})

    def take_variables(self, environment: dict[str, str]) -> "TaskSelection":
        """Return the choice with that of the settings, without what flags override.

        Args:
            environment: The settings of the worker. Those of the choice are removed.
        """
        only, excluded = (
            parse_text(SETTINGS[name], environment.pop(SETTINGS[name].variable, ""))
            for name in ("only_tasks", "except_tasks")
        )
        return replace(
            self,
            only=self.only or (() if self.queues else only),
            excluded=self.excluded or excluded,
        )

    def apply(self, app: DjangoApp) -> DjangoApp:
        """Return an app with the chosen tasks.

        Raises:
            ConfigurationError: A name matches nothing, or no task is left.
        """
        # A backend that accepts any queue has tasks only in those that are named.
        serve_queues(self.queues)
        self.choose(app.tasks())
        return app._with_tasks(self.choose)

    def to_text(self) -> str:
        """Return the choice as text, for an environment variable."""
        return json.dumps(asdict(self))

    def choose(self, tasks: Mapping[str, Task[..., Any]]) -> set[str]:
        """Return the identifiers of the tasks that the worker runs.

        Args:
            tasks: All tasks by identifier.

        Raises:
            ConfigurationError: A name matches nothing, or no task is left.
        """
        queues = group_by_queue(tasks)
        chosen = set(tasks)
        if self.only or self.queues:
            chosen = find_tasks("--only", self.only, tasks)
            chosen |= _find_queues("--queue", self.queues, queues)
        chosen -= find_tasks("--except", self.excluded, tasks)
        chosen -= _find_queues("--exclude-queue", self.excluded_queues, queues)
        if not chosen:
            raise ConfigurationError("no tasks left to run. Exclude fewer tasks or queues.")
        return chosen


def group_by_queue(tasks: Mapping[str, Task[..., Any]]) -> dict[str, set[str]]:
    """Return the identifiers of the tasks of `django.tasks` by the name of their queue."""
    queues: dict[str, set[str]] = {}
    for identifier in tasks:
        found = find_registered(identifier)
        if found is not None:
            queues.setdefault(found[1], set()).add(identifier)
    return queues


def _find_queues(flag: str, names: Iterable[str], queues: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    for name in names:
        if name not in queues:
            known = ", ".join(sorted(queues)) or "none"
            raise ConfigurationError(
                f"{flag}: no task of django.tasks is in queue {name!r}{suggest(name, queues)} "
                f"Known queues: {known}"
            )
        found |= queues[name]
    return found
