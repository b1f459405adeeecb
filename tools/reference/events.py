"""Write the tables of docs/reference/events.md from the classes and their docstrings."""

import dataclasses
import inspect
import re
from typing import Any

from graphile_worker import events
from graphile_worker.events import EVENTS_BY_NAME, Operation
from tools.reference.api import PublicName
from tools.reference.tables import code, table


def event_table(group: str) -> str:
    """Return the table of the events, or operations, below one comment of events.py."""
    classes = groups()[group]
    if issubclass(classes[0], Operation):
        rows = [[code(each.__name__), code(*fields(each)), describe(each)] for each in classes]
        return table(["operation", "fields", "when"], rows)
    bases = {each.__mro__[1] for each in classes}
    if len(bases) == 1:
        head = ["event", "name", "fields", "when"]
        rows = [_event(each) for each in classes]
        return f"Each is a {code(*(it.__name__ for it in bases))}.\n\n{table(head, rows)}"
    rows = [_event(each, with_base=True) for each in classes]
    return table(["event", "name", "base class", "fields", "when"], rows)


def groups() -> dict[str, list[type[Any]]]:
    """Return the classes of events.py by the comment before them."""
    classes: dict[str, list[type[Any]]] = {}
    for line in inspect.getsource(events).splitlines():
        if line.startswith("# "):
            group = classes.setdefault(line.removeprefix("# "), [])
        elif match := re.match(r"class (\w+)\(", line):
            each = getattr(events, match[1])
            if each in EVENTS_BY_NAME.values() or (
                issubclass(each, Operation) and each is not Operation
            ):
                group.append(each)
    return classes


def list_event_names() -> list[PublicName]:
    """Return the base classes, all events, the operations and the jobs of cron events."""
    bases = [events.Event, events.PoolEvent, events.WorkerEvent, events.JobEvent, events.Operation]
    jobs = [events.CronJob, events.BackfillJob]
    classes: list[type[Any]] = [
        *bases,
        *(each for group in groups().values() for each in group),
        *jobs,
    ]
    return [PublicName(events.__name__, each.__name__) for each in classes]


def _event(event: type[Any], *, with_base: bool = False) -> list[str]:
    base = event.__mro__[1]
    own = [name for name in fields(event) if name not in fields(base)]
    names = [code(event.__name__), code(event.name)]
    return [*names, *([code(base.__name__)] * with_base), code(*own), describe(event)]


def fields(kind: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def describe(kind: type[Any]) -> str:
    """Return the docstring of a class in one line."""
    return " ".join((inspect.getdoc(kind) or "").split())
