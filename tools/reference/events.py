"""Write the tables of docs/reference/events.md from the classes and their docstrings."""

import dataclasses
import inspect
import re
from typing import Any

from graphile_worker import events
from graphile_worker.events import EVENTS_BY_NAME, Operation
from tools.reference.tables import code, table


def event_table(group: str) -> str:
    """Return the table of the events, or operations, below one comment of events.py."""
    classes = groups()[group]
    if issubclass(classes[0], Operation):
        rows = [[code(each.__name__), code(*fields(each)), describe(each)] for each in classes]
        return table(["operation", "fields", "when"], rows)
    return table(["event", "name", "is a", "fields", "when"], map(_event, classes))


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


def _event(event: type[Any]) -> list[str]:
    base = event.__mro__[1]
    own = [name for name in fields(event) if name not in fields(base)]
    return [
        code(event.__name__),
        code(event.name),
        code(base.__name__),
        code(*own),
        describe(event),
    ]


def fields(kind: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def describe(kind: type[Any]) -> str:
    """Return the docstring of a class in one line."""
    return " ".join((inspect.getdoc(kind) or "").split())
