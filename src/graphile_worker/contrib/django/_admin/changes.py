"""Change jobs: a preview of what would change, then the change, its audit and its log."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponseNotAllowed
from django.shortcuts import redirect
from django.utils import timezone

from graphile_worker._support.durations import parse_duration
from graphile_worker._support.text import pluralize
from graphile_worker.contrib.django._admin.pages import (
    Queue,
    QueuePages,
    format_problem,
    parse_int,
)
from graphile_worker.contrib.django._admin.searches import Search, SearchDenied
from graphile_worker.contrib.django._admin.text import format_line
from graphile_worker.contrib.django._app import app
from graphile_worker.errors import GraphileWorkerError, QueryTimeoutError
from graphile_worker.ops.audit import format_for_audit
from graphile_worker.ops.bulk import (
    BulkAction,
    BulkPreview,
    BulkResult,
    CompleteAction,
    FailAction,
    RescheduleAction,
    RetryAction,
    UnlockAction,
    plan_bulk_change,
    plan_bulk_preview,
)
from graphile_worker.ops.filters import (
    MAX_DURATION,
    Filter,
    FilterField,
    Range,
    Term,
    filter_by_ids,
)
from graphile_worker.ops.search import ListedJob
from graphile_worker.ops.states import JobState

# More jobs take longer than a request should. The command changes any number.
MAX_JOBS = 10_000
# Upper bound on the jobs of one request. A page lists fewer.
MAX_IDS = 1_000

METHODS = ("GET", "HEAD", "POST")

MAX_REASON_CHARS = 1_000
MAX_REPR_CHARS = 200


class ChangeForm(forms.Form):
    """The values of a change. Most have none."""

    def build_action(self) -> BulkAction:
        """Return the change with the values of the form."""
        raise NotImplementedError


class RetryForm(ChangeForm):
    """Retry jobs."""

    def build_action(self) -> BulkAction:
        """Return the change."""
        return RetryAction()


class CompleteForm(ChangeForm):
    """Delete jobs as completed."""

    def build_action(self) -> BulkAction:
        """Return the change."""
        return CompleteAction()


class UnlockForm(ChangeForm):
    """Unlock jobs of dead workers."""

    def build_action(self) -> BulkAction:
        """Return the change."""
        return UnlockAction()


class FailForm(ChangeForm):
    """Fail jobs, with a reason."""

    reason = forms.CharField(
        required=False,
        max_length=MAX_REASON_CHARS,
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
        help_text="The error of the jobs (default: Manually marked as failed).",
    )

    def build_action(self) -> BulkAction:
        """Return the change with its reason."""
        return FailAction(self.cleaned_data["reason"] or None)


class RescheduleForm(ChangeForm):
    """Run jobs at another time."""

    delay = forms.CharField(
        required=False,
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
        help_text="Run the jobs after this time, for example 10m, 2h or 1d12h.",
    )
    run_at = forms.DateTimeField(
        required=False,
        label="Or run at",
        widget=forms.DateTimeInput(
            attrs={"type": "datetime-local", "step": "1"}, format="%Y-%m-%dT%H:%M:%S"
        ),
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        zone = timezone.get_current_timezone_name()
        self.fields["run_at"].help_text = f"A time in the zone {zone}."

    def clean_delay(self) -> timedelta | None:
        """Return the delay."""
        text = self.cleaned_data["delay"].strip()
        if not text:
            return None
        delay = parse_duration(text)
        if delay is None or delay > MAX_DURATION:
            raise forms.ValidationError("Enter a duration, for example 10m, 2h or 1d12h.")
        return delay

    def clean_run_at(self) -> datetime | None:
        """Return the time with its zone."""
        time: datetime | None = self.cleaned_data["run_at"]
        if time is not None and timezone.is_naive(time):
            time = timezone.make_aware(time)
        return time

    def clean(self) -> dict[str, Any]:
        """Check that there is one time."""
        values: dict[str, Any] = super().clean()
        times = [values.get(name) for name in ("delay", "run_at")]
        if not self.errors and times.count(None) != 1:
            raise forms.ValidationError("Enter a delay or a time, not both.")
        return values

    def build_action(self) -> BulkAction:
        """Return the change with its time."""
        delay, run_at = self.cleaned_data["delay"], self.cleaned_data["run_at"]
        return RescheduleAction(run_at=delay if delay is not None else run_at)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangeKind:
    """A change that the admin offers: its words, its permission and its form."""

    name: str
    label: str
    verb: str
    past_tense: str
    explanation: str
    form: type[ChangeForm]
    blank: BulkAction
    """The change without values, to find the jobs that it would affect."""
    command_options: str = ""
    is_destructive: bool = False

    @property
    def permission(self) -> str:
        """Return the name of the permission."""
        return f"{self.name}_job"

    @property
    def states(self) -> tuple[JobState, ...]:
        """Return the states in which it changes a job."""
        return self.blank.states


KINDS: Mapping[str, ChangeKind] = {
    each.name: each
    for each in (
        ChangeKind(
            name="retry",
            label="Retry now",
            verb="retry",
            past_tense="Retried",
            explanation="The jobs run as soon as a worker is free. The attempts of permanently "
            "failed jobs count from 0 again.",
            form=RetryForm,
            blank=RetryAction(),
        ),
        ChangeKind(
            name="reschedule",
            label="Run at…",
            verb="reschedule",
            past_tense="Rescheduled",
            explanation="The jobs run at the time that you enter. Permanently failed jobs get a "
            "new time but no new attempts: retry them instead.",
            form=RescheduleForm,
            blank=RescheduleAction(),
            command_options="--run-at TIME",
        ),
        ChangeKind(
            name="fail",
            label="Fail permanently…",
            verb="fail",
            past_tense="Failed",
            explanation="The jobs stay in the queue as permanently failed. You can retry them "
            "later.",
            form=FailForm,
            blank=FailAction(),
            command_options="--reason TEXT",
            is_destructive=True,
        ),
        ChangeKind(
            name="complete",
            label="Complete (delete)",
            verb="delete",
            past_tense="Deleted",
            explanation="The jobs are deleted without running, as if they had succeeded. You "
            "cannot undo this.",
            form=CompleteForm,
            blank=CompleteAction(),
            is_destructive=True,
        ),
        ChangeKind(
            name="unlock",
            label="Unlock jobs of dead workers",
            verb="unlock",
            past_tense="Unlocked",
            explanation="Other workers run the jobs again. Only jobs of dead workers, and jobs "
            "that have been locked for more than four hours, are unlocked.",
            form=UnlockForm,
            blank=UnlockAction(),
            is_destructive=True,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Selection:
    """The jobs that a user chose: some of a page, or all that match a search."""

    job_filter: Filter
    ids: list[int] = field(default_factory=list)

    def limit_to(self, last_id: int) -> Filter:
        """Return the filter without the jobs that were added after the preview."""
        return self.job_filter & Filter((Term(FilterField.ID, (Range(None, last_id),)),))


class NothingSelected(Exception):
    """The user chose an action without jobs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A change that a user asks for: which one, of which jobs, and where to go afterwards."""

    kind: ChangeKind
    queue: Queue
    selection: Selection
    list_url: str
    back_url: str


class ChangePages(QueuePages):
    """The page that previews a change, and makes it when the user confirms."""

    def may(self, request: Any, kind: ChangeKind) -> bool:
        """Return whether the user may make a change."""
        return self.has_permission(request, kind.permission)

    def show_action(self, request: Any) -> Any:
        """Preview a change. A POST request makes it."""
        if request.method not in METHODS:
            return HttpResponseNotAllowed(METHODS)
        kind = KINDS.get(request.GET.get("action", ""))
        if kind is None:
            raise Http404("no such action")
        if not self.may(request, kind):
            raise PermissionDenied
        queue = self.get_queue(request)
        parameters = Search.from_request(request).parameters
        list_url = self.build_link(self.get_url("changelist"), queue, parameters)
        try:
            selection = self._read_selection(request)
            back_url = list_url
            if request.GET.get("from") == "job" and len(selection.ids) == 1:
                back_url = self.build_link(self.get_url("change", *selection.ids), queue)
            change = Change(
                kind=kind, queue=queue, selection=selection, list_url=list_url, back_url=back_url
            )
            return self._preview_or_apply(request, change)
        except (GraphileWorkerError, SearchDenied, NothingSelected) as error:
            messages.add_message(request, messages.ERROR, format_problem(error))
            return redirect(list_url)

    def build_row(self, queue: Queue, job: ListedJob, now: datetime | None) -> object:
        """Return a job of the preview as text."""
        raise NotImplementedError

    def _read_selection(self, request: Any) -> Selection:
        if request.GET.get("all"):
            search = Search.from_request(request)
            can_view_payload = self.has_permission(request, "view_payload")
            return Selection(search.build_filter(can_view_payload=can_view_payload))
        parsed = [parse_int(text) for text in request.GET.getlist("id")[:MAX_IDS]]
        ids = list(dict.fromkeys(each for each in parsed if each is not None))
        if not ids:
            raise NothingSelected("No jobs selected. Select at least one, or all jobs that match.")
        return Selection(filter_by_ids(ids), ids)

    def _preview_or_apply(self, request: Any, change: Change) -> Any:
        kind, queue, selection = change.kind, change.queue, change.selection
        form = kind.form(request.POST if request.method == "POST" else None)
        last_id = parse_int(request.POST.get("last_id"))
        if last_id is None or not form.is_valid():
            action, job_filter, is_confirmed = kind.blank, selection.job_filter, False
        else:
            action, is_confirmed = form.build_action(), True
            job_filter = selection.limit_to(last_id)
        # One job more shows that there are more than the limit.
        plan = plan_bulk_preview(action, job_filter, queue.schemas, max_count=MAX_JOBS + 1)
        try:
            preview = queue.run(plan)
        except QueryTimeoutError as error:
            return self._render_timeout(request, change, error)
        if not is_confirmed or preview.total > MAX_JOBS:
            return self._render_preview(request, change, preview, form)
        result = self._apply(request, change, preview)
        level = messages.SUCCESS if result.changed else messages.WARNING
        messages.add_message(request, level, format_result(kind, result))
        # A deleted job has no page.
        is_deleted = kind.name == "complete" and result.changed
        return redirect(change.list_url if is_deleted else change.back_url)

    def _render_preview(
        self, request: Any, change: Change, preview: BulkPreview, form: ChangeForm
    ) -> Any:
        kind, queue, selection = change.kind, change.queue, change.selection
        is_too_many = preview.total > MAX_JOBS
        unchanged_count = preview.count.total - preview.total
        has_all_counts = not is_too_many and unchanged_count <= MAX_JOBS
        context = {
            "kind": kind,
            "form": form,
            "total": preview.total,
            "has_all_counts": has_all_counts,
            "locked_count": preview.locked_count,
            "other_count": unchanged_count - preview.locked_count,
            "missing_count": max(len(selection.ids) - preview.count.total, 0),
            "by_state": list(preview.count.by_state.items()),
            "rows": [self.build_row(queue, job, preview.now) for job in preview.sample],
            "more_count": preview.total - len(preview.sample),
            "filter": "" if selection.ids else format_line(selection.job_filter) or "all jobs",
            "last_id": preview.count.last_id,
            "is_too_many": is_too_many,
            "max_jobs": MAX_JOBS,
            "command": build_command(queue, kind, selection) if is_too_many else "",
            "form_url": request.get_full_path(),
            "back_url": change.back_url,
        }
        title = f"{kind.verb.capitalize()} {pluralize(preview.total, 'job')}?"
        if not preview.total:
            title = f"No jobs to {kind.verb}"
        elif is_too_many:
            title = f"Too many jobs to {kind.verb}"
        return self.render(request, queue, "action", title, context)

    def _render_timeout(self, request: Any, change: Change, error: QueryTimeoutError) -> Any:
        """Show the command instead of a preview that took too long."""
        kind, queue, selection = change.kind, change.queue, change.selection
        context = {
            "kind": kind,
            "problem": format_problem(error),
            "filter": "" if selection.ids else format_line(selection.job_filter) or "all jobs",
            "command": build_command(queue, kind, selection),
            "back_url": change.back_url,
        }
        return self.render(request, queue, "action", f"Jobs to {kind.verb} not counted", context)

    def _apply(self, request: Any, change: Change, preview: BulkPreview) -> BulkResult:
        progress = BulkResult()

        def on_progress(result: BulkResult) -> None:
            nonlocal progress
            progress = result

        plan = plan_bulk_change(
            preview,
            change.queue.schemas,
            on_progress=on_progress,
            # With ATOMIC_REQUESTS, a pause would hold the locks of the batches before it.
            throttle=0,
            actor=request.user.get_username(),
        )
        try:
            result = change.queue.run(plan)
        except GraphileWorkerError:
            # The batches before the error are changed. After other errors, the connection may be
            # unusable, and an error of the log would hide them.
            if progress.changed:
                log_change(request.user, change, preview, progress)
            raise
        if result.changed:
            log_change(request.user, change, preview, result)
        return result


def log_change(user: Any, change: Change, preview: BulkPreview, result: BulkResult) -> None:
    """Add an entry to Django's log of the admin: one for a change, also of many jobs."""
    kind, ids = change.kind, change.selection.ids
    is_one = len(ids) == 1
    sample = preview.sample[0] if is_one and preview.sample else None
    text = pluralize(result.changed, "job")
    if sample is not None:
        text = f"job {sample.id} ({format_line(sample.task_identifier)})"
    LogEntry.objects.create(
        user_id=user.pk,
        content_type=ContentType.objects.get(app_label="graphile_worker", model="job"),
        object_id=str(ids[0]) if is_one else None,
        object_repr=text[:MAX_REPR_CHARS],
        action_flag=DELETION if kind.name == "complete" else CHANGE,
        change_message=f"{format_result(kind, result)} Filter: "
        f"{format_line(format_for_audit(preview.job_filter))}",
    )


def format_result(kind: ChangeKind, result: BulkResult) -> str:
    """Return what a change did."""
    parts = [f"{kind.past_tense} {pluralize(result.changed, 'job')}."]
    if result.skipped_locked:
        parts.append(f"Skipped {pluralize(result.skipped_locked, 'job')} that a worker holds.")
    if result.gone:
        parts.append(f"{pluralize(result.gone, 'job')} no longer matched.")
    return " ".join(parts)


def build_command(queue: Queue, kind: ChangeKind, selection: Selection) -> str:
    """Return the command that changes any number of jobs, or nothing if none selects these."""
    if any(each.field is FilterField.NAME for each in selection.job_filter.terms):
        # The bare words of a command also match errors.
        return ""
    database = [] if queue.alias == app.alias else ["--database", queue.alias]
    text = str(selection.job_filter)
    jobs = ["--where", text] if text else ["--all"]
    words = ["python", "manage.py", "graphile_worker", *database, "jobs", kind.name, *jobs]
    return " ".join([*map(shlex.quote, words), kind.command_options]).strip()
