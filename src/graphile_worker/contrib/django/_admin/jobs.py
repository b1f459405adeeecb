"""The pages of jobs that have not ended: a list, and a page for each job."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.shortcuts import redirect

from graphile_worker._sql.query import Plan
from graphile_worker._sql.sqlstate import INSUFFICIENT_PRIVILEGE, get_sqlstate
from graphile_worker.contrib.django._admin.changes import KINDS, ChangeKind, ChangePages
from graphile_worker.contrib.django._admin.pages import (
    PAGE_SIZE,
    Queue,
    format_problem,
    parse_int,
    parse_object_id,
    read_listing,
)
from graphile_worker.contrib.django._admin.searches import Search
from graphile_worker.contrib.django._admin.text import (
    Block,
    format_age,
    format_error,
    format_json,
    format_line,
    format_sentence,
    format_span,
    format_time,
    format_when,
)
from graphile_worker.errors import GraphileWorkerError
from graphile_worker.ops.audit import AuditEntry, plan_list_audit
from graphile_worker.ops.explain import Explanation, plan_explain
from graphile_worker.ops.history import (
    HistoryMissing,
    JobHistory,
    format_progress,
    plan_get_job_history,
)
from graphile_worker.ops.search import JobPage, ListedJob, plan_list_jobs
from graphile_worker.ops.states import LOCKED_STATES, JobState, estimate_failed_at
from graphile_worker.ops.text import summarize_error
from graphile_worker.results import Attempt

# The newest entries of the audit about a job.
MAX_CHANGES = 20

HIDDEN_ROWS = (
    "Row level security hides all jobs from the role of this database, so the list is empty. "
    "Use a role with policies. `manage.py graphile_worker doctor` has details."
)


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job in a list."""

    id: int
    url: str
    task: str
    state: JobState
    when: str
    run_at: str
    attempts: str
    queue: str
    key: str
    worker: str
    error: str


@dataclass(frozen=True, slots=True)
class Button:
    """A link to the preview of a change."""

    label: str
    url: str
    is_destructive: bool


@dataclass(frozen=True, slots=True)
class Field:
    """A value of a job or an outcome, with a note and a link."""

    label: str
    text: str
    note: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """An attempt that ended."""

    number: int
    started_at: str
    took: str
    worker: str
    error: Block | None


class JobPages(ChangePages):
    """Lists, explains and changes jobs."""

    def show_changelist(self, request: Any) -> Any:
        """Show jobs, the newest first."""
        queue, search = self.get_queue(request), Search.from_request(request)
        before = parse_int(request.GET.get("before"))
        can_view = self.has_permission(request, "view_payload")

        def plan_page() -> Plan[JobPage]:
            job_filter = search.build_filter(can_view_payload=can_view)
            return plan_list_jobs(job_filter, queue.schemas, limit=PAGE_SIZE, before=before)

        listing = read_listing(queue, search.plan_selects(queue.schemas), plan_page)
        page = listing.page or JobPage([], None, has_more=False)
        if page.has_hidden_rows:
            listing.problems.append(HIDDEN_ROWS)
        older = str(page.jobs[-1].id) if page.has_more else None
        context = {
            "rows": [self.build_row(queue, job, page.now) for job in page.jobs],
            "kinds": [kind for kind in KINDS.values() if self.may(request, kind)],
            "action_url": self.get_url("action"),
            **self.build_list_context(queue, search, listing, is_first=before is None, older=older),
        }
        return self.render(request, queue, "job_list", "Jobs", context, is_list=True)

    def show_change(self, request: Any, object_id: str) -> Any:
        """Show a job, and why it does not run. Nothing changes."""
        queue, job_id = self.get_queue(request), parse_object_id(object_id)
        try:
            explanation = queue.run(plan_explain(job_id, queue.schemas))
            history = self._get_history(queue, job_id)
        except GraphileWorkerError as error:
            messages.add_message(request, messages.ERROR, format_problem(error))
            return redirect(self.build_link(self.get_url("changelist"), queue))
        if explanation is None:
            return self._leave_missing_job(request, queue, job_id, history)
        context = self._build_context(request, queue, explanation, history)
        title = f"Job {job_id}: {format_line(explanation.job.task_identifier)}"
        return self.render(request, queue, "job", title, context)

    def build_row(self, queue: Queue, job: ListedJob, now: datetime | None) -> JobRow:
        """Return a job as text."""
        return JobRow(
            id=job.id,
            url=self.build_link(self.get_url("change", job.id), queue),
            task=format_line(job.task_identifier or "(deleted task)"),
            state=job.state,
            when=format_when(job, now or job.created_at),
            run_at=format_time(job.run_at),
            attempts=f"{job.attempts}/{job.max_attempts}",
            queue=format_line(job.queue_name or ""),
            key=format_line(job.key or ""),
            worker=format_line(job.locked_by or ""),
            error=format_line(job.error or ""),
        )

    def _leave_missing_job(
        self, request: Any, queue: Queue, job_id: int, history: JobHistory | None
    ) -> Any:
        """Lead to what a job left, or to the list."""
        outcome_url = self._find_outcome_url(request, queue, history)
        if outcome_url:
            return redirect(outcome_url)
        text = f"Job {job_id} does not exist. It was completed or removed."
        messages.add_message(request, messages.WARNING, text)
        return redirect(self.build_link(self.get_url("changelist"), queue))

    def _build_context(
        self, request: Any, queue: Queue, explanation: Explanation, history: JobHistory | None
    ) -> dict[str, Any]:
        job, can_view = explanation.job, self.has_permission(request, "view_payload")
        kinds = [
            kind
            for kind in KINDS.values()
            if self.may(request, kind) and explanation.state in kind.states
        ]
        attempts = () if history is None else history.attempts
        return {
            "state": explanation.state,
            "reasons": [format_sentence(each.sentence) for each in explanation.reasons],
            "is_locked": explanation.state in LOCKED_STATES,
            "buttons": [self._build_button(queue, kind, job.id) for kind in kinds],
            "fields": [
                each for each in self._list_fields(queue, explanation, history) if each.text
            ],
            "payload": format_json(job.payload_text) if can_view else None,
            "error": format_error(job.last_error, can_view=can_view),
            "attempts": build_attempts(attempts, can_view=can_view),
            "outcome_url": self._find_outcome_url(request, queue, history),
            "changes": [build_change(each) for each in self._list_changes(queue, job.id)],
        }

    def _find_outcome_url(self, request: Any, queue: Queue, history: JobHistory | None) -> str:
        if history is None or not history.outcomes:
            return ""
        return self.build_link(self.find_url(request, "outcome", "change", history.job_id), queue)

    def _build_button(self, queue: Queue, kind: ChangeKind, job_id: int) -> Button:
        parameters = {"action": kind.name, "id": str(job_id), "from": "job"}
        url = self.build_link(self.get_url("action"), queue, parameters)
        return Button(kind.label, url, kind.is_destructive)

    def _list_fields(
        self, queue: Queue, explanation: Explanation, history: JobHistory | None
    ) -> Iterable[Field]:
        job, now, state = explanation.job, explanation.now, explanation.state
        url = self.get_url("changelist")
        task, queue_name = job.task_identifier or "", job.queue_name or ""
        task_url = self.build_link(url, queue, {"task": task})
        yield Field("Task", format_line(task), url=task_url)
        queue_url = self.build_link(url, queue, {"queue": queue_name})
        yield Field("Named queue", format_line(queue_name), url=queue_url)
        yield Field("Job key", format_line(job.key or ""))
        yield Field("Priority", str(job.priority))
        yield Field("Attempts", f"{job.attempts} of {job.max_attempts}")
        if state is JobState.FAILED:
            failed_at = estimate_failed_at(
                run_at=job.run_at, updated_at=job.updated_at, attempts=job.attempts, now=now
            )
            yield build_time("Failed at", failed_at, now)
        else:
            yield build_time("Run at", job.run_at, now)
        yield build_time("Created at", job.created_at, now)
        yield build_time("Updated at", job.updated_at, now)
        yield build_time("Locked at", job.locked_at, now)
        yield Field("Locked by", format_line(job.locked_by or ""))
        if history is not None and history.progress is not None:
            progress = history.progress
            text = format_line(format_progress(progress))
            yield Field("Progress", text, format_age(progress.updated_at, now))
        yield Field("Flags", format_line(", ".join(sorted(job.flags))))

    def _get_history(self, queue: Queue, job_id: int) -> JobHistory | None:
        try:
            return queue.run(plan_get_job_history(job_id, queue.schemas))
        except HistoryMissing:
            return None

    def _list_changes(self, queue: Queue, job_id: int) -> list[AuditEntry]:
        plan: Plan[list[AuditEntry]] = plan_list_audit(
            queue.schemas, job_id=job_id, limit=MAX_CHANGES
        )
        try:
            return queue.run(plan)
        except GraphileWorkerError:
            # The schema has no audit, or it is too long to search.
            return []
        except Exception as error:
            if get_sqlstate(error) != INSUFFICIENT_PRIVILEGE:
                raise
            return []


def build_time(label: str, time: datetime | None, now: datetime) -> Field:
    """Return a time, and how long ago it was."""
    return Field(label, format_time(time), format_age(time, now))


def build_attempts(attempts: Iterable[Attempt], *, can_view: bool) -> list[AttemptRow]:
    """Return attempts as text, the last one first."""
    rows = [
        AttemptRow(
            number=each.number,
            started_at=format_time(each.started_at),
            took=format_span(each.duration),
            worker=format_line(each.worker),
            error=format_error(each.error, can_view=can_view),
        )
        for each in attempts
    ]
    return rows[::-1]


def build_change(entry: AuditEntry) -> dict[str, str]:
    """Return an entry of the audit as text."""
    return {
        "at": format_time(entry.at),
        "actor": format_line(entry.actor or entry.role),
        "action": format_line(entry.action),
        "note": format_line(summarize_error(entry.note)),
    }
