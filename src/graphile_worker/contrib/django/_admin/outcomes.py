"""The pages of outcomes: what became of ended jobs, with their attempts and results."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import Http404
from django.shortcuts import redirect

from graphile_worker._sql.query import Plan
from graphile_worker.contrib.django._admin.jobs import Field, build_attempts, build_time
from graphile_worker.contrib.django._admin.pages import (
    PAGE_SIZE,
    Queue,
    QueuePages,
    format_problem,
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
    format_span,
    format_time,
)
from graphile_worker.errors import GraphileWorkerError
from graphile_worker.ops.history import (
    EndedJob,
    EndedPage,
    EndedPosition,
    plan_get_job_history,
    plan_list_outcomes,
)
from graphile_worker.results import JobStatusState


@dataclass(frozen=True, slots=True)
class OutcomeRow:
    """An ended job in a list."""

    id: int
    url: str
    task: str
    state: JobStatusState
    finished_at: str
    age: str
    took: str
    attempts: int
    error: str


@dataclass(frozen=True, slots=True)
class OutcomeDetails:
    """One outcome of a job. A job that was retried by hand has several."""

    state: JobStatusState
    fields: list[Field]
    error: Block | None
    has_result: bool
    result: Block | None


class OutcomePages(QueuePages):
    """Lists ended jobs whose tasks keep outcomes."""

    def show_changelist(self, request: Any) -> Any:
        """Show ended jobs, the last one first."""
        queue, search = self.get_queue(request), Search.from_request(request)
        before = parse_position(request.GET.get("before"))
        can_view = self.has_permission(request, "view_payload")

        def plan_page() -> Plan[EndedPage]:
            job_filter = search.build_ended_filter(can_view_payload=can_view)
            return plan_list_outcomes(job_filter, queue.schemas, limit=PAGE_SIZE, before=before)

        listing = read_listing(queue, search.plan_ended_selects(queue.schemas), plan_page)
        page = listing.page
        older = None if page is None or page.next is None else format_position(page.next)
        context = {
            "rows": [self._build_row(queue, each, page.now) for each in page.jobs] if page else [],
            **self.build_list_context(queue, search, listing, is_first=before is None, older=older),
        }
        return self.render(request, queue, "outcome_list", "Outcomes", context, is_list=True)

    def show_change(self, request: Any, object_id: str) -> Any:
        """Show what is kept of a job."""
        queue, job_id = self.get_queue(request), parse_object_id(object_id)
        list_url = self.build_link(self.get_url("changelist"), queue)
        try:
            history = queue.run(plan_get_job_history(job_id, queue.schemas))
        except GraphileWorkerError as error:
            messages.add_message(request, messages.ERROR, format_problem(error))
            return redirect(list_url)
        if not history.outcomes:
            text = f"Job {job_id} has no outcome. It has not ended, or its outcome is not kept."
            messages.add_message(request, messages.WARNING, text)
            return redirect(list_url)
        can_view = self.has_permission(request, "view_payload")
        job_url = ""
        if history.state is not None:
            job_url = self.build_link(self.find_url(request, "job", "change", job_id), queue)
        context = {
            "outcomes": [build_details(each, history.now, can_view) for each in history.outcomes],
            "attempts": build_attempts(history.attempts, can_view=can_view),
            "can_view_payload": can_view,
            "job_url": job_url,
            "job_state": history.state,
        }
        title = f"Outcome of job {job_id}: {format_line(history.task_identifier)}"
        return self.render(request, queue, "outcome", title, context)

    def _build_row(self, queue: Queue, job: EndedJob, now: datetime) -> OutcomeRow:
        return OutcomeRow(
            id=job.job_id,
            url=self.build_link(self.get_url("change", job.job_id), queue),
            task=format_line(job.task_identifier),
            state=job.state,
            finished_at=format_time(job.finished_at),
            age=format_age(job.finished_at, now),
            took=format_span(job.duration),
            attempts=job.attempts,
            error=format_line(job.error or ""),
        )


def build_details(job: EndedJob, now: datetime, can_view: bool) -> OutcomeDetails:
    """Return an outcome as text."""
    result = None
    if can_view and job.result_text is not None:
        result = format_json(job.result_text)
    return OutcomeDetails(
        state=job.state,
        fields=[
            Field("Attempts", str(job.attempts)),
            Field("Took", format_span(job.duration)),
            build_time("Created at", job.created_at, now),
            build_time("Run at", job.run_at, now),
            build_time("Started at", job.started_at, now),
            build_time("Finished at", job.finished_at, now),
            Field("Worker", format_line(job.worker)),
        ],
        error=format_error(job.error, can_view=can_view),
        has_result=job.has_result,
        result=result,
    )


def format_position(position: EndedPosition) -> str:
    """Return the start of the next page, as `jobs list --ended` prints it."""
    return f"{position.finished_at.isoformat()},{position.job_id}"


def parse_position(text: str | None) -> EndedPosition | None:
    """Return the start of a page.

    Raises:
        Http404: It is not the start of a page.
    """
    if not text:
        return None
    time, _, job_id = text.rpartition(",")
    try:
        position = EndedPosition(datetime.fromisoformat(time), int(job_id))
    except ValueError:
        raise Http404("no such page") from None
    if position.finished_at.tzinfo is None or abs(position.job_id) >= 2**63:
        raise Http404("no such page")
    return position
