"""The sentences, titles and figures of the dashboard, which the browser shows as they are."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

from graphile_worker._support.durations import format_duration
from graphile_worker._support.text import pluralize
from graphile_worker.contrib.dashboard._poller import Outage, Sample, SeriesPoint
from graphile_worker.contrib.dashboard._redaction import Redactor
from graphile_worker.contrib.dashboard._texts import ACTION_TEXTS
from graphile_worker.ops.diagnostics.findings import (
    Finding,
    QueueHealth,
    Severity,
    count_severities,
)
from graphile_worker.ops.diagnostics.thresholds import DEFAULT_THRESHOLDS
from graphile_worker.ops.explain import Explanation, ReasonCode
from graphile_worker.ops.filters import Filter, FilterField, Term, TextPattern, filter_by_states
from graphile_worker.ops.history import EndedJob, JobHistory
from graphile_worker.ops.job_actions import JobAction
from graphile_worker.ops.pauses import PauseKind
from graphile_worker.ops.pools import PoolHealth, PoolInfo, count_slots
from graphile_worker.ops.states import JobState, estimate_failed_at
from graphile_worker.ops.text import summarize_error
from graphile_worker.results import Attempt, JobStatusState

HEALTH_TITLES = {
    QueueHealth.HEALTHY: "Work is flowing",
    QueueHealth.DEGRADED: "Degraded",
    QueueHealth.STALLED: "Stalled",
    QueueHealth.UNKNOWN: "The queue could not be read yet",
}

OUTAGES = {
    "timeout": "The database has been too slow to answer",
    "schema_missing": "The queue’s schema has been missing",
    "permission_denied": "The database role has lacked permissions",
    "internal_error": "This dashboard has failed to read the queue",
}

# A series rises or falls if its last third differs from the first by this share, and this number.
TREND_SHARE = 0.1
TREND_MIN = 0.5
MIN_TREND_POINTS = 6

# Names of settings begin sentences without a capital letter.
KEPT_WORDS = ("fsync", "autovacuum")


# Words


def capitalize(text: str, *, name: str | None = None) -> str:
    """Begin a text with a capital letter, unless it begins with a name.

    Args:
        text: The text. Names that begin it have a colon after them, or an underscore.
        name: The name of the task, queue or worker that the text may begin with.
    """
    first = text.partition(" ")[0]
    is_name = first.endswith(":") or "_" in first or first in KEPT_WORDS
    if is_name or (name is not None and text.startswith(name)):
        return text
    return text[:1].upper() + text[1:]


def write_sentence(text: str) -> str:
    """Write a clause as a sentence: with a capital letter and a period."""
    text = capitalize(text).removesuffix(":")
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def format_age(seconds: float) -> str:
    """Format seconds with at most two units: `6m12s`."""
    if 0 < seconds < 1:
        return f"{max(1, round(seconds * 1000))}ms"
    return format_duration(timedelta(seconds=max(0.0, seconds))).replace(".0s", "s")


def format_rate(per_second: float) -> str:
    """Format a rate per second, or per minute or hour where that reads better."""
    factor, unit = 1, "s"
    if 0 < per_second < 0.1:
        factor, unit = (60, "min") if per_second * 60 >= 1 else (3600, "h")
    value = per_second * factor
    return f"{value:,.0f}/{unit}" if value >= 10 else f"{value:.1f}".removesuffix(".0") + f"/{unit}"


def link_jobs(*states: JobState, **names: str) -> str:
    """Return the path of the page of jobs in these states, of a task, queue or worker."""
    terms = [Term(FilterField(field), (TextPattern((name,)),)) for field, name in names.items()]
    job_filter = Filter(tuple(terms))
    if states:
        job_filter = job_filter & filter_by_states(*states)
    return link_page("jobs", q=str(job_filter))


def link_ready_jobs(tasks: Iterable[str]) -> str:
    """Return the path of the page of the ready jobs of these tasks."""
    values = tuple(TextPattern((task,)) for task in tasks)
    job_filter = Filter((Term(FilterField.TASK, values),)) & filter_by_states(JobState.READY)
    return link_page("jobs", q=str(job_filter))


def link_page(page: str, name: str | None = None, **query: str) -> str:
    """Return the path of a page, of what it shows, or of a search on it."""
    path = page if name is None else f"{page}/{quote(name, safe='')}"
    return f"{path}?{urlencode(query, quote_via=quote)}" if query else path


# The overview


def describe_verdict(health: QueueHealth, findings: Iterable[Finding] = ()) -> str:
    """Summarize the findings, which follow it."""
    problems = [each for each in findings if each.severity is not Severity.NOTE]
    counts = f": {count_severities(problems)}" if problems else ""
    return f"{HEALTH_TITLES[health]}{counts}"


def describe_outage(outage: Outage, seconds: float) -> str:
    """Describe why the data is old, and what follows from it."""
    what = OUTAGES.get(outage.code, "The database has been unreachable")
    return (
        f"{what} for {format_age(round(seconds))}, retrying. Actions are off until the database "
        f"answers. {write_sentence(outage.message)}"
    )


def list_stats(sample: Sample) -> list[dict[str, Any]]:
    """List the figures of the overview, each with a note and the series that it belongs to."""
    snapshot, series, task = sample.snapshot, sample.series, sample.oldest_ready_task
    oldest, rates = sample.oldest_ready, sample.rates

    def show(state: JobState, tone: str = "", note: str | None = None) -> dict[str, Any]:
        count = 0 if sample.is_partial else snapshot.count(state)
        return {
            "label": state.capitalize(),
            "value": "…" if sample.is_partial else f"{count:,}",
            "of": None,
            "note": describe_trend(series, state) if note is None else note,
            "tone": tone if count else "",
            "link": link_jobs(state),
            "series": state,
            "about": f"{state.capitalize()} jobs",
        }

    slots = None if sample.is_partial else count_slots(snapshot.pools)
    return [
        {
            "label": "Oldest ready job",
            "value": "none" if oldest is None else format_age(oldest),
            "of": None,
            "note": task or "nothing waits for a worker",
            "tone": judge_lateness(oldest),
            "link": None if task is None else link_jobs(JobState.READY, task=task),
            "series": "oldest_ready",
            "about": "Age of the oldest ready job",
        },
        show(JobState.READY, note=describe_drain(sample)),
        show(JobState.RUNNING, note=describe_workers(snapshot.pools))
        | {"of": f"of {pluralize(slots, 'slot')}" if slots else None},
        {
            "label": "Throughput",
            "value": "…" if rates is None else format_rate(rates.completed),
            "of": None,
            "note": "measuring"
            if rates is None
            else f"completed, {format_rate(rates.added)} added",
            "tone": "",
            "link": "history",
            "series": "completed",
            "about": "Completed jobs per second",
        },
        show(JobState.RETRYING, "warn"),
        show(JobState.FAILED, "bad") | {"link": "errors"},
    ]


def judge_lateness(seconds: float | None) -> str:
    """Return whether a job has been ready for too long: `warn` or `bad`."""
    age = timedelta(seconds=seconds or 0.0)
    if age > DEFAULT_THRESHOLDS.late_critical:
        return "bad"
    return "warn" if age > DEFAULT_THRESHOLDS.late_warning else ""


def describe_trend(series: Sequence[SeriesPoint], name: str) -> str:
    """Describe whether a value rose or fell between the first and the last third of a series."""
    values = [value for point in series if (value := getattr(point, name)) is not None]
    if len(values) < MIN_TREND_POINTS:
        return ""
    third = len(values) // 3
    before, after = sum(values[:third]) / third, sum(values[-third:]) / third
    if after > before * (1 + TREND_SHARE) + TREND_MIN:
        word = "rising"
    elif after < before * (1 - TREND_SHARE) - TREND_MIN:
        word = "falling"
    else:
        word = "steady"
    return f"{word} over {format_age((series[-1].at - series[0].at).total_seconds())}"


def describe_drain(sample: Sample) -> str:
    """Describe when no job is ready any more, at the current rates."""
    rates, history = sample.rates, sample.history
    if sample.is_partial:
        return "being counted"
    if rates is None or history is None:
        return "measuring the rates"
    if not sample.snapshot.count(JobState.READY):
        return "nothing waits for a worker"
    seconds = history.seconds_until_drained
    if seconds is not None:
        return f"drains in {'less than a second' if seconds < 1 else f'≈ {format_age(seconds)}'}"
    return "does not drain at this rate" if rates.completed else "no job completed lately"


def describe_workers(pools: Iterable[PoolInfo]) -> str:
    """Count the workers by their health."""
    healths = [pool.health for pool in pools]
    alive, dead, unknown = (
        healths.count(each) for each in (PoolHealth.ALIVE, PoolHealth.DEAD, PoolHealth.UNKNOWN)
    )
    if not healths:
        return "no worker is registered"
    others = [f"{dead} dead"] * bool(dead) + [f"{unknown} unregistered"] * bool(unknown)
    return ", ".join([pluralize(alive, "worker") + (" alive" if others else ""), *others])


# A job

REASON_TITLES = {
    JobState.RUNNING: "What it is doing",
    JobState.STALE: "Why it does not finish",
    JobState.FAILED: "Why it does not run again",
}
ENDINGS = {JobStatusState.SUCCEEDED: "Succeeded", JobStatusState.FAILED: "Failed permanently"}
NEXT_STATES = (JobState.READY, JobState.WAITING, JobState.SCHEDULED, JobState.RETRYING)


@dataclass(frozen=True, slots=True)
class JobEvent:
    """What happened to a job, what it is doing, or what comes next."""

    at: datetime
    text: str
    state: str | None = None
    detail: str | None = None
    is_current: bool = False
    """It describes a job that is in the queue."""
    is_next: bool = False
    is_estimate: bool = False


def list_events(
    explanation: Explanation | None, history: JobHistory | None, redactor: Redactor
) -> list[JobEvent]:
    """List the events of a job, the oldest first."""
    attempts = [] if history is None else history.attempts
    outcomes = [] if history is None else history.outcomes
    events = [_describe_attempt(each, redactor) for each in attempts]
    events += [
        JobEvent(
            each.finished_at, ENDINGS[each.state], each.state, _show_line(each.error, redactor)
        )
        for each in outcomes
    ]
    if explanation is not None:
        events.append(JobEvent(explanation.job.created_at, "Created"))
        has_failed = any(each.state is JobStatusState.FAILED for each in outcomes)
        events += _list_current_events(explanation, has_failed=has_failed)
    elif outcomes:
        events.append(JobEvent(outcomes[0].created_at, "Created"))
    return sorted(events, key=lambda event: (event.is_next, event.at))


def _describe_attempt(attempt: Attempt, redactor: Redactor) -> JobEvent:
    error = attempt.error or attempt.error_class
    return JobEvent(
        attempt.started_at,
        f"Attempt {attempt.number} ran for {format_age(attempt.duration.total_seconds())} on "
        f"{attempt.worker}",
        JobStatusState.FAILED if error else JobStatusState.SUCCEEDED,
        _show_line(error, redactor),
    )


def _list_current_events(explanation: Explanation, *, has_failed: bool) -> Iterator[JobEvent]:
    job, state = explanation.job, explanation.state
    if job.locked_at is not None:
        text = f"Attempt {job.attempts} of {job.max_attempts} started on {job.locked_by}"
        yield JobEvent(job.locked_at, text, state, is_current=True)
    if state is JobState.FAILED and not has_failed:
        failed_at = estimate_failed_at(
            run_at=job.run_at,
            updated_at=job.updated_at,
            attempts=job.attempts,
            now=explanation.now,
        )
        text = f"Failed permanently after {pluralize(job.attempts, 'attempt')}"
        yield JobEvent(failed_at, text, state, is_estimate=True)
    if state in NEXT_STATES:
        text = "Due"
        if explanation.reasons[0].why is ReasonCode.ELIGIBLE:
            text = "Due, waiting for a worker"
        elif state is JobState.RETRYING:
            text = f"Attempt {job.attempts + 1} of {job.max_attempts} is due"
        yield JobEvent(job.run_at, text, state, is_current=True, is_next=True)


def _show_line(error: str | None, redactor: Redactor) -> str | None:
    return redactor.redact_text(summarize_error(error)) or None


def describe_ending(outcome: EndedJob | None) -> str:
    """Describe how a job that is no longer in the queue ended."""
    if outcome is None:
        return "This job is not in the queue: it was completed or removed."
    took = format_age(outcome.duration.total_seconds())
    return (
        f"{ENDINGS[outcome.state]} after {took}, in attempt {outcome.attempts} on {outcome.worker}."
    )


# Lists without rows


def describe_no_jobs(job_filter: Filter, newest: int | None) -> tuple[str, list[object]]:
    """Return a title, and which part of the filter to drop or how to add a job."""
    if not job_filter.terms:
        add = {"link": ["Enqueue a job", "enqueue"]}
        return (
            "The queue is empty",
            ["Jobs that you add appear here within two seconds. ", add, "."],
        )
    parts: list[object] = []
    states: list[str] = []
    if newest is not None:
        parts.append(f"The search covered the newest {newest:,} jobs. ")
        parts.append(
            {"button": ["Search all jobs", link_page("jobs", q=str(job_filter), newest="all")]}
        )
    for term in job_filter.terms:
        rest = Filter(tuple(each for each in job_filter.terms if each is not term))
        is_state = term.field is FilterField.STATE
        states += map(str, term.values) if is_state and not term.is_negated else []
        label = "All states" if is_state else f"Leave out {term}"
        parts += [" ", {"button": [label, link_page("jobs", q=str(rest))]}]
    return f"No {states[0]} jobs match" if len(states) == 1 else "No jobs match", parts


# Changes


def describe_pause(kind: PauseKind, name: str, verb: str, warnings: Iterable[str] = ()) -> str:
    """Describe the change of a pause, with what the user must know about it."""
    return " ".join([f"The {kind} “{name}” is {verb}.", *map(write_sentence, warnings)])


def describe_recovery(jobs: int, queues: int, rejected: Mapping[str, str]) -> str:
    """Describe which locks were released, and which workers keep theirs."""
    parts = [f"{id}: {why}" for id, why in rejected.items()]
    if jobs or queues or not rejected:
        released = f"Released {pluralize(jobs, 'job')} and {pluralize(queues, 'queue')}."
        parts.insert(0, released)
    return " ".join(parts)


def describe_skipped(locked: int, gone: int = 0, unfit: int = 0, states: str = "") -> list[str]:
    """Describe the jobs that a change leaves out."""
    it = "it" if locked == 1 else "them"
    reasons = {
        f"a worker has locked {it}.": locked,
        "completed, removed or changed since the preview.": gone,
        f"this action applies to jobs that are {states}.": unfit,
    }
    return [
        f"{pluralize(count, 'job')} skipped: {why}" for why, count in reasons.items() if count > 0
    ]


def describe_run(
    action: JobAction,
    *,
    changed: int,
    done: int,
    total: int,
    rate: float | None,
    is_running: bool,
    is_canceled: bool,
) -> str:
    """Describe how far a change of many jobs is, or what became of it."""
    text = ACTION_TEXTS[action]
    if is_running:
        speed = ""
        if rate:
            left = format_age(max(0, total - done) / rate)
            speed = f", {format_rate(rate)}, about {left} left"
        return f"{text.label}: {done:,} of {total:,}{speed}"
    rest = pluralize(total - done, "job")
    stopped = f" Stopped before the end: {rest} left." if is_canceled else ""
    return f"{pluralize(changed, 'job')} {text.done}.{stopped}"
