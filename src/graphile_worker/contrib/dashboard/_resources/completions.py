"""What a user may want to type: completions of a filter, and places to go to."""

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from graphile_worker.contrib.dashboard._api import ApiRequest, ApiRoute, Parameter
from graphile_worker.contrib.dashboard._resources._common import (
    ID_PATTERN,
    get_sample,
    read_text,
)
from graphile_worker.contrib.dashboard._users import Permission
from graphile_worker.contrib.dashboard._wording import link_page
from graphile_worker.ops.filters import VALUE_PARSERS, FilterField, Term, TextPattern
from graphile_worker.ops.pools import list_served_tasks
from graphile_worker.ops.states import JobState

MAX_TEXT_CHARS = 1_000
MAX_OPTIONS = 20
# Shorter texts would find most names.
MIN_NAME_CHARS = 2

# The term at the end of a filter: its field, and what is typed of its last value.
LAST_TERM = re.compile(
    r"""(?:^|\s)-?(?:([^\s":]+):(?:(?:"(?:[^"\\]|\\.)*"|[^\s"])*,)?)?("(?:[^"\\]|\\.)*|[^\s"]*)$"""
)

# What each field of a filter finds, for the completion.
FIELD_HELP = {
    "task": "Name of the task; * matches any text.",
    "queue": "Name of the queue, or none.",
    "state": "State of the job.",
    "id": "Id of the job, or a range such as 10..20.",
    "key": "Job key, or none.",
    "worker": "Worker that holds the job.",
    "error": "Part of the last error.",
    "attempts": "Number of attempts, for example >=3.",
    "priority": "Priority, for example <0.",
    "age": "Time since it was due, for example >10m.",
    "run": "When it is due, for example <1h.",
    "created": "When it was added, for example >2026-08-01.",
    "flag": "Flag of the job.",
    "payload": "Value in the payload, for example payload.user.id:42.",
}
FIELD_VALUES: dict[str, list[str]] = {
    "state": [*JobState],
    "queue": ["none"],
    "key": ["none"],
    "age": [">10m", ">1h", "<1h"],
    "run": ["<0s", ">0s", "<1h"],
    "created": [">-10m", ">-1h", ">-1d"],
    "attempts": [">=1", ">=3"],
    "priority": ["<0", ">0"],
}


async def list_completions(request: ApiRequest) -> object:
    """List what can follow the text of a filter."""
    text = read_text(request.query, "text", max_chars=MAX_TEXT_CHARS) or ""
    names = await _get_names(request)
    return {"options": list(islice(complete_filter(text, names), MAX_OPTIONS))}


async def list_places(request: ApiRequest) -> object:
    """List the pages of jobs, tasks and queues that a text may mean."""
    text = read_text(request.query, "q", max_chars=MAX_TEXT_CHARS) or ""
    names = await _get_names(request)
    return {"options": list(islice(find_places(text, names), MAX_OPTIONS))}


Names = dict[str, list[str]]
Option = dict[str, str]


async def _get_names(request: ApiRequest) -> Names:
    """Return the names of the last snapshot, without a query."""
    snapshot, app = (await get_sample(request)).snapshot, request.service.app
    tasks = {task.identifier for task in snapshot.tasks} | {*list_served_tasks(snapshot.pools)}
    if app is not None:
        tasks |= app.tasks().keys()
    queues = {queue.name for queue in snapshot.queues}
    queues |= {job.queue_name for job in snapshot.locked if job.queue_name is not None}
    return {
        FilterField.TASK: sorted(tasks),
        FilterField.QUEUE: sorted(queues),
        FilterField.WORKER: sorted(pool.id for pool in snapshot.pools),
    }


def complete_filter(text: str, names: Names) -> Iterator[Option]:
    """Complete the term at the end of a filter: a field, a name, or a value of a field."""
    term = LAST_TERM.search(text)
    if term is None:
        return
    field, typed = term.groups()
    before = text.removesuffix(typed)
    wanted = typed.removeprefix('"').lower()
    if field is not None:
        known = names.get(field, [])
        for value in dict.fromkeys([*known, *FIELD_VALUES.get(field, [])]):
            if wanted in value.lower() and value != typed:
                shown = _quote(value) if value in known else value
                yield {"text": f"{before}{shown} ", "label": value, "help": ""}
        return
    for name in VALUE_PARSERS:
        if name.startswith(wanted):
            label = "payload." if name == FilterField.PAYLOAD else f"{name}:"
            yield {"text": before + label, "label": label, "help": FIELD_HELP.get(name, "")}
    if len(wanted) >= MIN_NAME_CHARS:
        for name in _find(names[FilterField.TASK], wanted):
            yield {"text": f"{before}task:{_quote(name)} ", "label": name, "help": "task"}


def find_places(text: str, names: Names) -> Iterator[Option]:
    """Find the pages of a job, of tasks and queues, and searches for the text."""
    wanted = text.strip().lower()
    number = wanted.removeprefix("job").strip(" #")
    if ID_PATTERN.fullmatch(number):
        yield {"text": f"jobs/{number}", "label": f"Job {number}", "help": "job"}
    for task in _find(names[FilterField.TASK], wanted):
        yield {"text": link_page("tasks", task), "label": task, "help": "task"}
    for queue in _find(names[FilterField.QUEUE], wanted):
        yield {"text": link_page("queues", queue), "label": queue, "help": "queue"}
    if wanted:
        yield {"text": link_page("queues", q=text), "label": text, "help": "search queues"}
        yield {"text": link_page("jobs", q=text), "label": text, "help": "search jobs"}


def _find(names: Iterable[str], wanted: str) -> list[str]:
    """Return the names that contain a text, those that begin with it first."""
    found = [name for name in names if wanted in name.lower()]
    return sorted(found, key=lambda name: not name.lower().startswith(wanted))


def _quote(name: str) -> str:
    """Return a name as a value of a filter, in quotes where it needs them."""
    term = Term(FilterField.TASK, (TextPattern((name,)),))
    return str(term).removeprefix(f"{FilterField.TASK}:")


OPTION_EXAMPLE = {"text": "task:send_email ", "label": "send_email", "help": "task"}

ROUTES = (
    ApiRoute(
        method="GET",
        path="/completions",
        permission=Permission.VIEW,
        handler=list_completions,
        summary="List what can follow the text of a filter.",
        query=(Parameter(name="text", help="The text up to the cursor."),),
        answer={"options": [OPTION_EXAMPLE]},
    ),
    ApiRoute(
        method="GET",
        path="/places",
        permission=Permission.VIEW,
        handler=list_places,
        summary="List the jobs, tasks and queues that a text may mean, for the command palette.",
        query=(Parameter(name="q", help="An id, or a part of a name."),),
        answer={"options": [OPTION_EXAMPLE | {"text": "tasks/send_email"}]},
    ),
)
