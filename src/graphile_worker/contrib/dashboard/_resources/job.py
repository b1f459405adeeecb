"""One job: why it does not run, its attempts, its payload and its result."""

import json
import re
from dataclasses import replace
from typing import Any

from graphile_worker._sql.queries.search import get_payload_text
from graphile_worker._sql.query import Plan
from graphile_worker.contrib.dashboard._api import ApiRequest, ApiRoute, Problem
from graphile_worker.contrib.dashboard._redaction import MAX_CHARS, RedactedText, Redactor
from graphile_worker.contrib.dashboard._resources._common import (
    ENDED_JOB_EXAMPLE,
    EXAMPLE_TIME,
    JOB_EXAMPLE,
    get_now,
    get_redactor,
    read_job_id,
    show_ended_job,
    show_error,
)
from graphile_worker.contrib.dashboard._texts import ACTION_TEXTS
from graphile_worker.contrib.dashboard._users import Permission
from graphile_worker.contrib.dashboard._wording import (
    REASON_TITLES,
    describe_ending,
    link_jobs,
    list_events,
    write_sentence,
)
from graphile_worker.jobs import Job
from graphile_worker.ops.audit import plan_record_reveal
from graphile_worker.ops.explain import Explanation, Reason, plan_explain
from graphile_worker.ops.history import HistoryMissing, JobHistory, plan_get_job_history
from graphile_worker.ops.job_actions import JobAction, list_action_obstacles
from graphile_worker.ops.search import limit_plan, with_limits
from graphile_worker.ops.states import JobState, estimate_failed_at
from graphile_worker.ops.text import format_bytes, summarize_error
from graphile_worker.results import Attempt, Progress
from graphile_worker.tasks.batch import TRACE_KEY

MAX_LISTED_ERROR_CHARS = 500

FIRST_ACTIONS = (JobAction.RETRY, JobAction.RESCHEDULE)
LAST_ACTIONS = (JobAction.FAIL, JobAction.DELETE)

# The id of the trace in a `traceparent`.
TRACE_PATTERN = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


async def show(request: ApiRequest) -> object:
    """Show a job that exists, or what is known of one that ended."""
    service = request.service
    job_id = read_job_id(request)
    by_index = replace(service.limits, prefer_indexes=True)
    explanation = await service.read(plan_explain(job_id, service.schemas, limits=by_index))
    history: JobHistory | None
    try:
        history = await service.read(
            plan_get_job_history(job_id, service.schemas, limits=service.limits)
        )
    except (HistoryMissing, Problem) as error:
        # An old schema, or a role without the privilege, has no history to show.
        if not isinstance(error, HistoryMissing) and not isinstance(
            error.__cause__, HistoryMissing
        ):
            raise
        history = None
    if explanation is None and (history is None or not history.is_known):
        raise Problem(
            404, "not_found", f"job {job_id} is not in the queue: it was completed or removed"
        )
    redactor = get_redactor(service)
    trace_id = None if explanation is None else _find_trace(explanation.job)
    state = None if explanation is None else explanation.state
    if explanation is None and history is not None and history.outcomes:
        shown_state: str | None = history.outcomes[0].state
    else:
        shown_state = state
    return {
        "now": await get_now(request) if explanation is None else explanation.now,
        "job": None if explanation is None else _show_job(explanation, redactor),
        "state": shown_state,
        "reasons": []
        if explanation is None
        else [_show_reason(each, redactor) for each in explanation.reasons],
        "attempts": []
        if history is None
        else [_show_attempt(each, redactor) for each in history.attempts],
        "outcomes": []
        if history is None
        else [show_ended_job(each, redactor) for each in history.outcomes],
        "progress": None if history is None else _show_progress(history.progress, redactor),
        "has_history": history is not None,
        "timeline": list_events(explanation, history, redactor),
        "why": REASON_TITLES.get(state, "Why it is not running") if state else None,
        "ending": None if explanation is not None else _describe_end(history),
        "actions": {str(action): reason for action, reason in list_action_obstacles(state).items()},
        "trace_id": trace_id,
        "facts": []
        if explanation is None
        else _list_facts(explanation.job, trace_id, service.settings.trace_url),
        "view": {
            "title": _build_title(job_id, explanation, history),
            "actions": []
            if state is None
            else _list_actions(
                str(job_id), state, service.settings.environment_level == "production"
            ),
        },
    }


def _list_actions(id: str, state: JobState, is_production: bool) -> list[object]:
    """List the changes of a job, those that end it last."""
    obstacles = list_action_obstacles(state)

    def build(*actions: JobAction) -> list[object]:
        return [_build_action(id, each, obstacles[each], is_production) for each in actions]

    duplicate = {
        "label": "Duplicate…",
        "permission": Permission.ENQUEUE,
        "href": f"enqueue?from={id}",
    }
    release = build(JobAction.UNLOCK) if state is JobState.STALE else []
    return [*build(*FIRST_ACTIONS), *release, duplicate, *build(*LAST_ACTIONS)]


def _build_action(
    id: str, action: JobAction, obstacle: str | None, is_production: bool
) -> dict[str, object]:
    text = ACTION_TEXTS[action]
    is_sure = action is JobAction.RETRY and not is_production
    is_last = action in LAST_ACTIONS
    return {
        "label": text.label + ("" if is_sure else "…"),
        "permission": text.permission,
        "obstacle": obstacle,
        "kind": "danger" if is_last else "primary" if action is JobAction.RETRY else None,
        "is_more": is_last,
        "bulk": {
            "action": action,
            "ids": [id],
            "title": f"{text.label}: job {id}",
            "is_sure": is_sure,
        },
    }


def _build_title(
    job_id: int, explanation: Explanation | None, history: JobHistory | None
) -> list[object]:
    tasks = [] if history is None else [each.task_identifier for each in history.outcomes]
    if explanation is not None and explanation.job.task_identifier is not None:
        tasks.insert(0, explanation.job.task_identifier)
    links = [{"link": [task, link_jobs(task=task)]} for task in tasks[:1]]
    return [*links, {"muted": f" #{job_id}"}]


def _list_facts(job: Job, trace_id: str | None, trace_url: str | None) -> list[object]:
    """List the details of a job. The page leaves out those without a value."""
    trace = trace_url.replace("{trace_id}", trace_id) if trace_id and trace_url else None
    queue, worker = job.queue_name, job.locked_by
    return [
        ["Queue", queue and {"queue": queue}],
        ["Key", job.key and {"copy": job.key}],
        ["Attempts", f"{job.attempts:,} of {job.max_attempts:,}"],
        ["Priority", str(job.priority)],
        ["Due", {"both": job.run_at}],
        ["Created", {"both": job.created_at}],
        ["Updated", {"both": job.updated_at}],
        ["Worker", worker and {"link": [worker, link_jobs(worker=worker)]}],
        ["Locked", job.locked_at and {"both": job.locked_at}],
        ["Flags", ", ".join(sorted(job.flags or ()))],
        ["Revision", str(job.revision)],
        ["Trace", {"external": [trace_id, trace]} if trace else trace_id],
    ]


def _describe_end(history: JobHistory | None) -> str:
    return describe_ending(history.outcomes[0] if history and history.outcomes else None)


async def show_payload(request: ApiRequest) -> object:
    """Show the payload of a job, or the one that was kept when it ended."""
    return _mask_text(request, *await _read_payload(request))


async def reveal_payload(request: ApiRequest) -> object:
    """Show the payload of a job with all values."""
    return await _reveal_text(request, *await _read_payload(request), what="payload")


async def show_result(request: ApiRequest) -> object:
    """Show the result that was kept when a job succeeded."""
    return _mask_text(request, *await _read_result(request))


async def reveal_result(request: ApiRequest) -> object:
    """Show the result of a job with all values."""
    return await _reveal_text(request, *await _read_result(request), what="result")


async def _read_payload(request: ApiRequest) -> tuple[str, int]:
    job_id = _check_payload_access(request)
    found = await request.service.read(_plan_get_payload(request, job_id))
    if found is not None:
        return found
    history = await _get_history(request, job_id)
    kept = [each.payload_text for each in history.outcomes if each.payload_text is not None]
    if not kept:
        raise Problem(404, "not_found", f"the payload of job {job_id} is not kept")
    return kept[0][: MAX_CHARS + 1], len(kept[0].encode())


async def _read_result(request: ApiRequest) -> tuple[str, int]:
    job_id = _check_payload_access(request)
    history = await _get_history(request, job_id)
    kept = [each.result_text for each in history.outcomes if each.result_text is not None]
    if not kept:
        raise Problem(404, "not_found", f"no result of job {job_id} is kept")
    return kept[0][: MAX_CHARS + 1], len(kept[0].encode())


def _check_payload_access(request: ApiRequest) -> int:
    if request.service.settings.hide_payloads:
        raise Problem(403, "forbidden", "this dashboard does not show payloads and results")
    return read_job_id(request)


def _plan_get_payload(request: ApiRequest, job_id: int) -> Plan[tuple[str, int] | None]:
    query = get_payload_text(job_id, MAX_CHARS + 1)
    return with_limits(query, request.service.schemas, request.service.limits)


async def _get_history(request: ApiRequest, job_id: int) -> JobHistory:
    service = request.service
    try:
        return await service.read(
            plan_get_job_history(job_id, service.schemas, limits=service.limits)
        )
    except HistoryMissing as error:
        raise Problem(404, "not_found", str(error)) from error


def _mask_text(request: ApiRequest, text: str, size: int) -> dict[str, Any]:
    return _show_text(text, size, get_redactor(request.service).redact_json(text))


async def _reveal_text(request: ApiRequest, text: str, size: int, *, what: str) -> dict[str, Any]:
    service = request.service
    job_id = read_job_id(request)
    plan = plan_record_reveal(job_id, what, service.schemas, actor=request.user.name)
    if not await service.change(limit_plan(plan, service.schemas, service.limits)):
        raise Problem(
            403,
            "permission_denied",
            "masked values are shown only with an entry in the audit. Its table is missing, or the "
            "role of this dashboard may not add entries.",
        )
    return _show_text(text, size, RedactedText(text, is_redacted=False))


def _show_text(text: str, size: int, shown: RedactedText) -> dict[str, Any]:
    return {
        "text": shown.text[:MAX_CHARS],
        "is_redacted": shown.is_redacted,
        "is_truncated": len(text) > MAX_CHARS or len(shown.text) > MAX_CHARS,
        "bytes": size,
        "size": format_bytes(size),
    }


def _show_job(explanation: Explanation, redactor: Redactor) -> dict[str, Any]:
    job, now = explanation.job, explanation.now
    failed_at = None
    if explanation.state is JobState.FAILED:
        failed_at = estimate_failed_at(
            run_at=job.run_at, updated_at=job.updated_at, attempts=job.attempts, now=now
        )
    summary = summarize_error(job.last_error)[:MAX_LISTED_ERROR_CHARS] or None
    return {
        "id": job.id,
        "task": job.task_identifier,
        "queue": job.queue_name,
        "state": explanation.state,
        "priority": job.priority,
        "run_at": job.run_at,
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "error": None if summary is None else redactor.redact_text(summary),
        "created_at": job.created_at,
        "key": job.key,
        "locked_at": job.locked_at,
        "locked_by": job.locked_by,
        "failed_at": failed_at,
        "when": {"for": job.locked_at} if job.locked_at else {"ago": job.run_at},
        "tries": f"{job.attempts}/{job.max_attempts}",
        "payload_bytes": len(job.payload_text.encode()),
        "last_error": show_error(job.last_error, redactor),
        "flags": sorted(job.flags or ()),
        "revision": job.revision,
        "updated_at": job.updated_at,
        "is_available": job.locked_at is None and job.attempts < job.max_attempts,
    }


def _show_reason(reason: Reason, redactor: Redactor) -> dict[str, Any]:
    evidence = {
        # The error of the job is shown once, masked.
        name: value
        for name, value in reason.evidence.items()
        if name != "last_error"
    }
    return {
        "code": reason.why,
        "sentence": write_sentence(redactor.redact_text(reason.sentence)),
        "evidence": evidence,
    }


def _show_attempt(attempt: Attempt, redactor: Redactor) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "started_at": attempt.started_at,
        "duration": attempt.duration,
        "worker": attempt.worker,
        "error": show_error(attempt.error, redactor),
        "error_class": attempt.error_class,
    }


def _show_progress(progress: Progress | None, redactor: Redactor) -> dict[str, Any] | None:
    if progress is None:
        return None
    return {
        "fraction": progress.fraction,
        "message": show_error(progress.message, redactor),
        "updated_at": progress.updated_at,
    }


def _find_trace(job: Job) -> str | None:
    """Return the id of the trace that added a job, or None."""
    if TRACE_KEY not in job.payload_text:
        return None
    try:
        payload = json.loads(job.payload_text)
        trace = TRACE_PATTERN.fullmatch(payload[TRACE_KEY]["traceparent"])
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    return None if trace is None else trace[1]


TEXT_EXAMPLE: dict[str, Any] = {
    "text": '{"to": "ada@example.com", "token": "•••"}',
    "is_redacted": True,
    "is_truncated": False,
    "bytes": 52,
    "size": "52 B",
}

ROUTES = (
    ApiRoute(
        method="GET",
        path="/jobs/{id}",
        permission=Permission.VIEW,
        handler=show,
        summary="Show a job: its state and why it does not run, attempts, outcomes and progress.",
        answer={
            "now": EXAMPLE_TIME,
            "job": {
                **JOB_EXAMPLE,
                "payload_bytes": 52,
                "last_error": "TimeoutError: no answer\n\nTraceback …",
                "flags": [],
                "revision": 0,
                "updated_at": EXAMPLE_TIME,
                "is_available": False,
            },
            "state": "failed",
            "reasons": [
                {
                    "code": "failed",
                    "sentence": "It failed permanently: 25 of 25 attempts; retry it.",
                    "evidence": {"attempts": 25, "max_attempts": 25},
                }
            ],
            "attempts": [
                {
                    "number": 1,
                    "started_at": EXAMPLE_TIME,
                    "duration": 1.5,
                    "worker": "pypool-0123456789abcdef01",
                    "error": "TimeoutError: no answer",
                    "error_class": "builtins.TimeoutError",
                }
            ],
            "outcomes": [ENDED_JOB_EXAMPLE],
            "progress": {"fraction": 0.4, "message": "page 4 of 10", "updated_at": EXAMPLE_TIME},
            "has_history": True,
            "timeline": [
                {
                    "at": EXAMPLE_TIME,
                    "text": "Attempt 1 ran for 1.5 s on pypool-0123456789abcdef01",
                    "state": "failed",
                    "detail": "TimeoutError: no answer",
                    "is_current": False,
                    "is_next": False,
                    "is_estimate": False,
                }
            ],
            "why": "Why it does not run again",
            "ending": None,
            "actions": {
                "retry": None,
                "reschedule": None,
                "fail": "It has already failed permanently.",
                "delete": None,
                "unlock": "No worker holds it.",
            },
            "trace_id": None,
            "facts": [["Attempts", "25 of 25"]],
            "view": {},
        },
    ),
    ApiRoute(
        method="GET",
        path="/jobs/{id}/payload",
        permission=Permission.VIEW_PAYLOAD,
        handler=show_payload,
        summary="Show the payload of a job, with masked values.",
        answer=TEXT_EXAMPLE,
    ),
    ApiRoute(
        method="GET",
        path="/jobs/{id}/result",
        permission=Permission.VIEW_PAYLOAD,
        handler=show_result,
        summary="Show the kept result of a job, with masked values.",
        answer=TEXT_EXAMPLE,
    ),
    ApiRoute(
        method="POST",
        path="/jobs/{id}/payload/reveal",
        permission=Permission.VIEW_PAYLOAD,
        handler=reveal_payload,
        summary="Show the payload of a job with all values. The audit records who saw them.",
        answer=TEXT_EXAMPLE | {"is_redacted": False},
    ),
    ApiRoute(
        method="POST",
        path="/jobs/{id}/result/reveal",
        permission=Permission.VIEW_PAYLOAD,
        handler=reveal_result,
        summary="Show the kept result of a job with all values. The audit records who saw them.",
        answer=TEXT_EXAMPLE | {"is_redacted": False},
    ),
)
