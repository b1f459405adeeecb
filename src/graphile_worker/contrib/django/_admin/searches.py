"""The filter of a list: the search box, in the language of `jobs list`, and its choices."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.ended_jobs import list_kept_tasks
from graphile_worker._sql.queries.search import list_queue_names, list_task_names
from graphile_worker._sql.query import Plan
from graphile_worker.contrib.django._admin.text import format_line
from graphile_worker.errors import FilterError
from graphile_worker.ops.filters import (
    ENDED_STATES,
    Filter,
    FilterField,
    Term,
    TextPattern,
    parse_ended_filter,
    parse_filter,
    without_errors,
)
from graphile_worker.ops.history.access import plan_require_history
from graphile_worker.ops.search import DEFAULT_LIMITS, with_limits
from graphile_worker.ops.states import JobState

# With more names, the search box finds the others.
MAX_NAMES = 200

# The fields that need the permission to view payloads, with the word for many of them. A search
# would reveal what a value contains.
HIDDEN_FIELDS = {FilterField.PAYLOAD: "payloads", FilterField.ERROR: "errors"}


class SearchDenied(Exception):
    """The user searches payloads or errors without the permission to view them."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An option of a select element."""

    value: str
    label: str
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class Select:
    """A select element with the names of states, tasks or queues."""

    name: str
    label: str
    choices: list[Choice]
    has_more: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """The parameters of a list, as they are in its URL."""

    q: str = ""
    state: str = ""
    task: str = ""
    queue: str = ""

    @classmethod
    def from_request(cls, request: Any) -> "Search":
        """Read the parameters of a request."""
        names = ("q", "state", "task", "queue")
        return cls(**{name: request.GET.get(name, "").strip() for name in names})

    @property
    def parameters(self) -> dict[str, str]:
        """Return the parameters of the same list."""
        values = {"q": self.q, "state": self.state, "task": self.task, "queue": self.queue}
        return {name: value for name, value in values.items() if value}

    def build_filter(self, *, can_view_payload: bool) -> Filter:
        """Return the filter of jobs that have not ended.

        Raises:
            FilterError: The search box contains a mistake, or a choice does not exist.
            SearchDenied: The user may not search payloads or errors.
        """
        return self._build_filter(parse_filter, can_view_payload=can_view_payload)

    def build_ended_filter(self, *, can_view_payload: bool) -> Filter:
        """Return the filter of ended jobs.

        Raises:
            FilterError: The search box contains a mistake, or a choice does not exist.
            SearchDenied: The user may not search errors.
        """
        return self._build_filter(parse_ended_filter, can_view_payload=can_view_payload)

    def _build_filter(self, parse: Callable[[str], Filter], *, can_view_payload: bool) -> Filter:
        typed = parse(self.q)
        if not can_view_payload:
            for term in typed.terms:
                if term.field in HIDDEN_FIELDS:
                    raise SearchDenied(
                        f"You may not search {HIDDEN_FIELDS[term.field]}: this needs the "
                        "permission view_payload."
                    )
            typed = without_errors(typed)
        return typed & self._build_choices(parse)

    def _build_choices(self, parse: Callable[[str], Filter]) -> Filter:
        terms: list[Term] = []
        for name in (self.task, self.queue):
            if "\x00" in name:
                raise FilterError(1, "text that PostgreSQL can store", name)
        if self.state:
            # A quoted text is one value, with any characters.
            quoted = self.state.replace("\\", "\\\\").replace('"', '\\"')
            try:
                terms += parse(f'state:"{quoted}"').terms
            except FilterError as error:
                raise FilterError(1, error.expected, self.state) from None
        if self.task:
            terms.append(Term(FilterField.TASK, (TextPattern((self.task,)),)))
        if self.queue:
            terms.append(Term(FilterField.QUEUE, (TextPattern((self.queue,)),)))
        return Filter(tuple(terms))

    def plan_selects(self, schemas: Schemas) -> Plan[list[Select]]:
        """Return the choices of jobs that have not ended."""
        tasks = yield from with_limits(list_task_names(MAX_NAMES + 1), schemas)
        queues = yield from with_limits(list_queue_names(MAX_NAMES + 1), schemas)
        return [
            _build_select("state", "State", JobState, self.state),
            _build_select("task", "Task", tasks, self.task),
            _build_select("queue", "Queue", queues, self.queue),
        ]

    def plan_ended_selects(self, schemas: Schemas) -> Plan[list[Select]]:
        """Return the choices of ended jobs."""
        yield from plan_require_history(schemas, DEFAULT_LIMITS)
        tasks = yield from with_limits(list_kept_tasks(MAX_NAMES + 1), schemas)
        return [
            _build_select("state", "State", ENDED_STATES, self.state),
            _build_select("task", "Task", tasks, self.task),
        ]


def _build_select(name: str, label: str, names: Iterable[str], chosen: str) -> Select:
    listed = [str(each) for each in names]
    values: Sequence[str] = listed[:MAX_NAMES]
    if chosen and chosen not in values:
        values = [*values, chosen]
    choices = [Choice(each, format_line(each), each == chosen) for each in values]
    return Select(name, label, choices, has_more=len(listed) > MAX_NAMES)
