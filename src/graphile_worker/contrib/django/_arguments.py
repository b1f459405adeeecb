"""The arguments of `manage.py graphile_worker`: Django's, those of this command, and the rest."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from django.core.management.base import CommandError

from graphile_worker._settings.values import split_list
from graphile_worker.contrib.django._selection import TaskSelection

# Flags with a value.
VALUE_FLAGS = frozenset(
    {
        *("--settings", "--pythonpath", "--verbosity", "-v"),
        *("--database", "--only", "--except", "--queue", "--exclude-queue"),
    }
)
# Django's short form.
VERBOSITY = re.compile(r"-v\d")
SWITCHES = frozenset({"--traceback", "--no-color", "--force-color", "--skip-checks"})

# Subcommands and flags of `graphile-worker` that do not run a worker.
OTHER_WORK = frozenset(
    {
        *("init", "demo", "migrate", "add", "jobs", "history", "workers", "pause", "resume"),
        *("audit", "bench", "cron", "tune", "doctor", "top", "dashboard", "exporter", "config"),
        *("limits", "shards", "types"),
        *("-h", "--help", "--version", "--schema-only", "--cleanup"),
    }
)


@dataclass(slots=True)
class Arguments:
    """What the command was called with."""

    rest: list[str] = field(default_factory=list)
    """The arguments of `graphile-worker`."""
    switches: set[str] = field(default_factory=set)
    values: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> "Arguments":
        """Take the flags of Django and of this command out of the arguments.

        Raises:
            CommandError: A flag has no value.
        """
        parsed, remaining = cls(), list(arguments)
        while remaining:
            argument = remaining.pop(0)
            flag, has_value, value = argument.partition("=")
            if argument == "--":
                parsed.rest += [argument, *remaining]
                break
            if argument in SWITCHES or VERBOSITY.fullmatch(argument):
                parsed.switches.add(argument)
            elif flag in VALUE_FLAGS:
                if not has_value and not remaining:
                    raise CommandError(f"{flag} needs a value.")
                parsed.values.setdefault(flag, []).append(value if has_value else remaining.pop(0))
            else:
                parsed.rest.append(argument)
        return parsed

    @property
    def database(self) -> str | None:
        """The alias of `--database`."""
        return self.values.get("--database", [None])[-1]

    @property
    def selection(self) -> TaskSelection | None:
        """The choice of tasks, or None for all."""
        selection = TaskSelection(
            only=self._list_tasks("--only"),
            excluded=self._list_tasks("--except"),
            queues=tuple(self.values.get("--queue", ())),
            excluded_queues=tuple(self.values.get("--exclude-queue", ())),
        )
        return None if selection == TaskSelection() else selection

    def _list_tasks(self, flag: str) -> tuple[str, ...]:
        """Return the names that a flag lists, as `graphile-worker` reads the flag."""
        texts = self.values.get(flag, [])
        names = tuple(name for text in texts for name in split_list(text))
        if texts and not names:
            raise CommandError(f"{flag} needs the name of a task.")
        return names

    @property
    def runs_worker(self) -> bool:
        """Whether the command runs a worker.

        A value of a flag may have the name of a subcommand. Then the worker itself finds the
        mistakes that this command would report.
        """
        return not OTHER_WORK.intersection(each.partition("=")[0] for each in self.rest)
