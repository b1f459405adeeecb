"""What the browser shows of the pages, as data: columns, changes, questions and fields of forms.

The browser renders these without knowing what they are about. A page that needs more is a module of
`static/app/pages/`.

A text may be a list of parts. A part is a text, or an object of one kind and its value: a link, a
time, a name. `static/app/ui/rich.js` has the kinds. Columns have the same kinds.

Texts of changes contain names of values of the row, for example `{name}`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from graphile_worker.contrib.dashboard._texts import (
    KEY_MODE_TEXTS,
    PAUSE_TEXTS,
    RECOVERY_TEXTS,
    STATE_HELP,
)
from graphile_worker.contrib.dashboard._users import Permission
from graphile_worker.jobs import JobKeyMode
from graphile_worker.limits import MAX_BURST, MAX_SLOTS
from graphile_worker.ops.pauses import PauseKind
from graphile_worker.ops.pools import PoolHealth
from graphile_worker.ops.states import JobState

RARE_STATES = (JobState.WAITING, JobState.STALE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        key: The name of its value in a row.
        label: Its heading.
        kind: How the value is shown.
        sort: The name of the value that sorts the rows, or None.
        card: Its place on a card: `lead` or `end` of the first line, `line`, `actions` or `hide`.
        is_wide: It gets the width that is left, and its text is cut.
        is_rare: It is left out if no row has a value.
        choice: Whether the user may hide it: `on` is shown at first, `off` is not.
    """

    key: str
    label: str
    kind: str
    sort: str | None
    card: str | None = None
    is_wide: bool = False
    is_rare: bool = False
    choice: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """A field of a form, with the attributes of its element that a browser checks.

    Attributes:
        name: The name of its value.
        label: Its label.
        help: A text below it, or one for each of its values.
        value: Its value at first.
        options: Values and labels of a choice, or None.
        input: Attributes of the element.
        is_number: Its value is sent as a number.
        is_list: Its value is a list, separated by commas.
        only: The field is shown if another one has this value, or any value for None.
    """

    name: str
    label: str
    help: str | Mapping[str, str] | None = None
    value: str = ""
    options: Mapping[str, str] | None = None
    input: Mapping[str, object] | None = None
    is_number: bool = False
    is_list: bool = False
    only: tuple[str, str | None] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What a dialog asks before a change. With `typed`, the user types that text."""

    title: str
    text: str
    action: str
    fields: tuple[Field, ...] = ()
    typed: str | None = None
    is_dangerous: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A button: a change that a route makes, a change of many jobs, or a link.

    Attributes:
        label: The text of the button.
        permission: What the user needs.
        path: The route that makes the change.
        body: Values of the request, beside those of the question.
        question: What to ask first.
        bulk: The jobs of a change that has a preview, and its action.
        open: The route whose answer has the `link` to open.
        href: The page to open.
        icon: An icon before the text.
        kind: How the button looks: `primary`, `quiet` or `danger`.
        is_icon: The button has only the icon, in a table.
        is_more: It is an item of the menu of a row.
    """

    label: str
    permission: Permission = Permission.VIEW
    path: str | None = None
    body: Mapping[str, object] | None = None
    question: Question | None = None
    bulk: Mapping[str, object] | None = None
    open: str | None = None
    href: str | None = None
    icon: str | None = None
    kind: str | None = None
    is_icon: bool = False
    is_more: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class PageText:
    """A page of the rail.

    Attributes:
        path: Its path.
        key: The key that opens it after `g`.
        title: Its title.
        module: The script that renders it.
        hint: A text beside the title.
        source: The route that it reads.
        rows: The name of the rows in the answer.
        row_key: The name of the value that identifies a row.
        columns: Its columns.
        open: The page that a click on a row opens.
        search: Parameters of the source, and the labels of their fields.
        cursor: The parameter of the source for the next page.
        item: The parameter for the part of the path after the page, for example `q`, or `path` if
            the source has a route for it.
        item_module: The script that renders it, if it is another one.
        item_title: The title of its window, if it is another one.
        table: The name of the table for screen readers, if it is not the title.
        icon: The icon in the place of no rows.
        empty: The title and the text in the place of no rows.
        unmatched: The same if a search has none.
        is_frozen: The page does not follow the queue, and has a button instead.
        tally: How the number beside its name looks, which an overview has in `tallies`.
    """

    path: str
    key: str
    title: str
    module: str = "view"
    hint: str | None = None
    source: str | None = None
    rows: str | None = None
    row_key: str = "id"
    columns: tuple[Column, ...] = ()
    open: str | None = None
    search: Mapping[str, str] | None = None
    cursor: str | None = None
    item: str | None = None
    item_module: str | None = None
    item_title: str | None = None
    table: str | None = None
    icon: str | None = None
    empty: tuple[object, ...] = ()
    unmatched: tuple[object, ...] = ()
    is_frozen: bool = False
    tally: str | None = None


def column(kind: str, key: str, label: str, *, sort: str | None = "", **more: Any) -> Column:
    """Build a column, which sorts by its own value unless another one is named."""
    return Column(key=key, label=label, kind=kind, sort=key if sort == "" else sort, **more)


def without_sort(columns: Iterable[tuple[Any, ...]]) -> tuple[Column, ...]:
    """Build columns of rows whose order has a meaning."""
    return tuple(
        column(*each[:3], sort=None, **(each[3] if len(each) > 3 else {})) for each in columns
    )


ACTIONS = column("actions", "actions", "", sort=None, card="actions")
STATE_COLUMNS = tuple(
    column("in_state", state, state.capitalize(), is_rare=state in RARE_STATES)
    for state in STATE_HELP
)

ERROR_COLUMNS = (
    column("rich", "title", "Error", sort="summary", is_wide=True, card="lead"),
    column("task", "task", "Task"),
    column("number", "jobs", "Jobs", card="end"),
    column("number", "retrying", "Retrying"),
    column("number", "failed", "Failed"),
    column("about", "first_at", "First"),
    column("about", "last_at", "Last"),
    ACTIONS,
)
QUEUE_COLUMNS = (
    column("queue", "name", "Queue", card="lead"),
    column("state", "state", "State"),
    column("rich", "holder", "Held by", sort=None, card="line"),
    column("ago", "since", "Since"),
    column("number", "ready", "Ready"),
    column("capped", "waiting", "Waiting"),
    column("age", "oldest_waiting_seconds", "Oldest"),
    ACTIONS,
)
TASK_COLUMNS = (
    column("task", "identifier", "Task", card="lead"),
    column("rich", "served", "Workers", sort="is_served", card="end"),
    column("age", "oldest_ready_seconds", "Oldest ready"),
    *STATE_COLUMNS,
    column("line", "error", "Newest error", is_wide=True, card="line"),
    ACTIONS,
)
LIMIT_COLUMNS = (
    column("rich", "name", "Limit", card="lead"),
    column("rich", "limit_text", "In effect"),
    column("rich", "app_text", "In the app", sort="set_at"),
    column("rich", "use_text", "Use", sort="used_slots"),
    column("rich", "tasks_text", "Tasks", sort="tasks", card="line"),
    column("amount", "ready_text", "Ready jobs", sort="ready"),
    ACTIONS,
)
WORKER_COLUMNS = (
    column("rich", "title", "Worker", sort="id", card="lead"),
    column("state", "health", "Health", sort="health_rank"),
    column("amount", "slots", "Slots", sort="jobs"),
    column("age", "seconds_since_heartbeat", "Last heartbeat"),
    column("rich", "holds", "Holds", sort=None),
    column("ago", "oldest_lock_at", "Oldest lock"),
    column("number", "task_count", "Tasks"),
    column("ago", "started_at", "Started"),
    ACTIONS,
)
CRON_COLUMNS = (
    column("rich", "identifier", "Item", card="lead"),
    column("state", "health", "Status"),
    column("rich", "schedule_text", "Schedule", sort="schedule", card="line"),
    column("task", "task", "Task"),
    column("rich", "next_text", "Next", sort="next"),
    column("ago", "last_at", "Last"),
    column("positive_age", "backfill_seconds", "Backfill", is_rare=True),
    ACTIONS,
)
AUDIT_COLUMNS = without_sort(
    [
        ("both", "at", "When", {"card": "end"}),
        ("rich", "who", "Who", {"card": "lead"}),
        ("code", "action", "Action"),
        ("number", "count", "Jobs"),
        ("rich", "ids_text", "Ids"),
        ("code", "filter", "Filter"),
        ("line", "note", "Note", {"is_wide": True, "card": "line"}),
    ]
)
BRIEF_ENDED_COLUMNS = without_sort(
    [
        ("job", "id", "Job", {"card": "lead"}),
        ("state", "state", "Outcome"),
        ("task", "task", "Task"),
        ("ago", "finished_at", "Ended"),
        ("age", "run_seconds", "Duration"),
        ("line", "error", "Error", {"is_wide": True, "card": "line"}),
    ]
)
ENDED_COLUMNS = (
    *BRIEF_ENDED_COLUMNS[:-1],
    *without_sort(
        [
            ("age", "wait_seconds", "Waited"),
            ("number", "attempt", "Attempt"),
            ("worker", "worker", "Worker"),
        ]
    ),
    BRIEF_ENDED_COLUMNS[-1],
)
JOB_COLUMNS = without_sort(
    [
        ("job", "id", "ID"),
        ("name", "task", "Task", {"card": "lead"}),
        ("name", "queue", "Queue", {"choice": "on"}),
        ("state", "state", "State", {"card": "end"}),
        ("rich", "when", "When", {"choice": "on"}),
        ("ago", "run_at", "Run at", {"choice": "off"}),
        ("ago", "created_at", "Created", {"choice": "on"}),
        ("number", "priority", "Priority", {"choice": "off"}),
        ("amount", "tries", "Attempts", {"choice": "on"}),
        ("name", "key", "Key", {"choice": "off"}),
        ("list", "flags", "Flags", {"choice": "off"}),
        ("worker", "locked_by", "Locked by", {"choice": "off"}),
        ("rich", "error", "Error", {"choice": "on", "is_wide": True, "card": "line"}),
    ]
)
OVERVIEW_COLUMNS = (
    column("rich", "title", "Task", sort="identifier", card="lead"),
    column("age", "oldest_ready_seconds", "Oldest ready", card="end"),
    *STATE_COLUMNS,
    column("line", "error", "Newest error", sort=None, is_wide=True, card="line"),
)

PAGES = (
    PageText(
        path="",
        key="o",
        title="Overview",
        module="overview",
        columns=OVERVIEW_COLUMNS,
        icon="jobs",
        empty=(
            "No jobs yet",
            [
                "The queue is empty. Jobs that you add appear here within two seconds. ",
                {"link": ["Enqueue a job", "enqueue"]},
                ", for example from SQL:",
            ],
        ),
    ),
    PageText(
        path="jobs",
        key="j",
        title="Jobs",
        module="jobs",
        columns=JOB_COLUMNS,
        item="path",
        item_module="job",
        item_title="Job",
    ),
    PageText(
        path="errors",
        key="e",
        title="Errors",
        source="/errors",
        rows="groups",
        row_key="fingerprint",
        columns=ERROR_COLUMNS,
        open="errors/{fingerprint}",
        item="path",
        table="Groups of errors",
        icon="succeeded",
        empty=(
            "No job has an error",
            "Jobs that fail appear here, grouped by what their errors have in common.",
        ),
        tally="bad",
    ),
    PageText(
        path="queues",
        key="q",
        title="Queues",
        hint="A named queue runs one job at a time. All runtimes obey its pause.",
        source="/queues",
        rows="queues",
        row_key="name",
        columns=QUEUE_COLUMNS,
        search={"q": "Find queues by name"},
        cursor="after",
        item="q",
        icon="queues",
        empty=("No named queues", "Jobs with a queue name run one after another."),
        unmatched=("No queue has this name", "Search for a part of the name."),
        tally="warn",
    ),
    PageText(
        path="tasks",
        key="t",
        title="Tasks",
        hint="Only Python workers obey the pause of a task. Pause a queue to hold all runtimes.",
        source="/tasks",
        rows="tasks",
        row_key="identifier",
        columns=TASK_COLUMNS,
        item="path",
        icon="tasks",
        empty=(
            "No tasks",
            "A task appears here with its first job, or when a worker that serves it starts.",
        ),
        tally="warn",
    ),
    PageText(
        path="limits",
        key="l",
        title="Limits",
        hint="How many jobs of a task run at once, or start in a period. Python workers only.",
        source="/limits",
        rows="limits",
        row_key="name",
        columns=LIMIT_COLUMNS,
        icon="limits",
    ),
    PageText(
        path="workers",
        key="w",
        title="Workers",
        source="/workers",
        rows="workers",
        columns=WORKER_COLUMNS,
        item="id",
        icon="workers",
        empty=(
            "No workers",
            [
                "No worker sends heartbeats, and none holds a lock. Start one with ",
                {"code": "graphile-worker run"},
                ".",
            ],
        ),
        unmatched=("This worker is gone", "It ended, and holds no locks."),
        tally="bad",
    ),
    PageText(
        path="cron",
        key="c",
        title="Cron",
        hint="Scheduled tasks",
        source="/cron",
        rows="items",
        row_key="identifier",
        columns=CRON_COLUMNS,
        table="Scheduled tasks",
        icon="cron",
        empty=(
            "No scheduled tasks",
            [
                "Declare one with ",
                {"code": '@app.cron("0 9 * * *")'},
                " or in a crontab file, and start a worker.",
            ],
        ),
    ),
    PageText(
        path="history",
        key="h",
        title="History",
        module="history",
        columns=ENDED_COLUMNS,
        icon="history",
        empty=("Nothing ended in this range", "Choose a longer range."),
        unmatched=("No outcome matches", "Remove a condition of the filter."),
    ),
    PageText(path="enqueue", key="n", title="Enqueue", module="enqueue"),
    PageText(
        path="diagnosis",
        key="d",
        title="Diagnosis",
        hint="The report of “graphile-worker doctor”, at most 30 s old.",
        source="/diagnosis",
        is_frozen=True,
    ),
    PageText(
        path="audit",
        key="a",
        title="Audit",
        hint="Changes by people and programs. What workers do is not listed.",
        source="/audit",
        rows="entries",
        columns=AUDIT_COLUMNS,
        search={"actor": "Who", "action": "Action", "job_id": "Job id"},
        cursor="before",
        icon="audit",
        empty=("No entries", "Changes of jobs appear here."),
        unmatched=("No entry matches", "Change or clear the fields above."),
    ),
)

PAUSE_FIELDS = (
    Field(
        name="seconds",
        label="For",
        is_number=True,
        options={
            "": "Until you resume it",
            "600": "10 minutes",
            "3600": "1 hour",
            "14400": "4 hours",
            "86400": "1 day",
        },
    ),
    Field(name="reason", label="Reason (optional)", input={"maxlength": 200}),
)


def _build_pause_changes(kind: PauseKind, name: str) -> dict[str, Change]:
    return {
        f"pause_{kind}": Change(
            label="Pause",
            permission=Permission.PAUSE,
            path=f"/{kind}s/{{{name}}}/pause",
            question=Question(
                title=f"Pause the {kind} “{{{name}}}”?",
                text=PAUSE_TEXTS[kind],
                action=f"Pause the {kind}",
                fields=PAUSE_FIELDS,
            ),
            icon="paused",
            kind="quiet",
        ),
        f"resume_{kind}": Change(
            label="Resume",
            permission=Permission.PAUSE,
            path=f"/{kind}s/{{{name}}}/resume",
            icon="running",
        ),
    }


def build_recovery(health: PoolHealth, ids: list[str], name: str, label: str) -> Change:
    """Build the change that releases what workers hold.

    For a worker that may be alive, the user types its id.
    """
    is_dead = health is PoolHealth.DEAD
    typed = None if is_dead else ids[0]
    return Change(
        label=label,
        permission=Permission.RECOVER,
        path="/workers/recover",
        body={"ids": ids, "force": not is_dead, "confirm": typed},
        question=Question(
            title=f"Recover the jobs of {name}?",
            text=RECOVERY_TEXTS[health],
            action="Recover",
            typed=typed,
            is_dangerous=True,
        ),
        kind="danger" if is_dead else "quiet",
    )


def _build_limit_change(*fields: Field) -> Change:
    return Change(
        label="Set…",
        permission=Permission.LIMIT,
        path="/limits/{name}/set",
        question=Question(
            title="Set the limit “{name}”?",
            text="The value holds on all Python workers until you reset it. A deployment does not "
            "change it back. Jobs that are running continue.",
            action="Set the limit",
            fields=fields,
        ),
        kind="quiet",
    )


CHANGES: Mapping[str, Change] = {
    **_build_pause_changes(PauseKind.QUEUE, "name"),
    **_build_pause_changes(PauseKind.TASK, "identifier"),
    **{
        f"recover_{health}": build_recovery(health, ["{worker}"], "{worker}", "Recover…")
        for health in PoolHealth
    },
    "set_slots": _build_limit_change(
        Field(
            name="value",
            label="Jobs at a time",
            value="{value}",
            input={"type": "number", "min": 1, "max": MAX_SLOTS, "required": True},
        ),
    ),
    "set_rate": _build_limit_change(
        Field(
            name="value",
            label="Starts per period",
            help="For example 50/1m: 50 starts in each minute, at even intervals.",
            value="{value}",
            input={"pattern": "[0-9]+/.+", "required": True},
        ),
        Field(
            name="burst",
            label="Burst",
            help="Starts that may follow at once after a pause.",
            value="{burst}",
            is_number=True,
            input={"type": "number", "min": 1, "max": MAX_BURST, "required": True},
        ),
    ),
    "reset_limit": Change(
        label="Reset", permission=Permission.LIMIT, path="/limits/{name}/reset", icon="retrying"
    ),
    "run_cron": Change(
        label="Run now",
        permission=Permission.ENQUEUE,
        path="/cron/{identifier}/run",
        icon="running",
    ),
    "enqueue": Change(
        label="Enqueue {identifier}",
        permission=Permission.ENQUEUE,
        href="enqueue?task={identifier}",
        icon="enqueue",
        kind="quiet",
        is_icon=True,
    ),
    "enqueue_task": Change(
        label="Enqueue",
        permission=Permission.ENQUEUE,
        href="enqueue?task={identifier}",
        icon="enqueue",
    ),
    "retry_group": Change(
        label="Retry…",
        permission=Permission.RETRY,
        bulk={"action": "retry", "fingerprint": "{fingerprint}"},
        icon="retrying",
    ),
    "open_group": Change(
        label="Open in Jobs", open="/errors/{fingerprint}", icon="jobs", is_more=True
    ),
    "fail_group": Change(
        label="Fail permanently…",
        permission=Permission.FAIL,
        bulk={"action": "fail", "fingerprint": "{fingerprint}"},
        icon="failed",
        kind="danger",
        is_more=True,
    ),
    "delete_group": Change(
        label="Delete…",
        permission=Permission.DELETE,
        bulk={"action": "delete", "fingerprint": "{fingerprint}"},
        icon="close",
        kind="danger",
        is_more=True,
    ),
}
GROUP_CHANGES = ("retry_group", "open_group", "fail_group", "delete_group")

OVERVIEW_CHART: Mapping[str, object] = {
    "label": "Jobs added and completed per second",
    "unit": "rate",
    "lines": [
        {"key": "completed", "label": "Completed", "color": "accent", "is_filled": True},
        {"key": "added", "label": "Added", "color": "retrying", "is_dashed": True},
    ],
}

WHOLE: Mapping[str, object] = {"type": "number", "step": 1}
TIME: Mapping[str, object] = {"type": "datetime-local", "step": 1}

ENQUEUE_FIELDS = (
    Field(name="run_at", label="Run at", help="Now, if empty.", input=TIME),
    Field(name="queue_name", label="Queue", help="Its jobs run one at a time."),
    Field(
        name="priority",
        label="Priority",
        help="Lower runs first. Default: 0.",
        input=WHOLE,
        is_number=True,
    ),
    Field(
        name="max_attempts",
        label="Maximum attempts",
        help="Default: 25.",
        input={**WHOLE, "min": 1},
        is_number=True,
    ),
    Field(
        name="flags",
        label="Flags",
        help="Separated by commas. Workers that forbid a flag skip the job.",
        is_list=True,
    ),
    Field(name="job_key", label="Key", help="At most one job has it."),
    Field(
        name="job_key_mode",
        label="If a job has this key",
        help={str(mode): text for mode, text in KEY_MODE_TEXTS.items()},
        value=JobKeyMode.REPLACE,
        options={str(mode): str(mode) for mode in KEY_MODE_TEXTS},
        only=("job_key", None),
    ),
    Field(name="unique", label="Unique key", help="Adds nothing while its window is open."),
    Field(name="unique_for", label="Unique for", help="For example 1d."),
)

# Values of changes of many jobs, by action. A delay is a time as the API reads it.
BULK_FIELDS: Mapping[str, tuple[Field, ...]] = {
    "fail": (
        Field(
            name="reason",
            label="Reason",
            help="The jobs show it as their error.",
            input={"required": True, "maxlength": 500},
        ),
    ),
    "reschedule": (
        Field(
            name="run_at",
            label="Run",
            value="0s",
            options={
                "0s": "Now",
                "10m": "In 10 minutes",
                "1h": "In 1 hour",
                "1d": "In 1 day",
                "at": "At a time",
                "": "Do not change",
            },
        ),
        Field(
            name="at",
            label="Time",
            input={"type": "datetime-local", "required": True},
            only=("run_at", "at"),
        ),
        Field(
            name="priority",
            label="Priority",
            help="Smaller numbers run first. Leave empty to keep the priority.",
            input={"type": "number", "min": -32768, "max": 32767},
            is_number=True,
        ),
    ),
}
