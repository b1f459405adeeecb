"""The overview, as one answer and as a stream."""

import logging
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from graphile_worker._support.error_format import format_error_line
from graphile_worker.contrib.dashboard._access import get_access
from graphile_worker.contrib.dashboard._api import ApiRequest, ApiRoute, Problem
from graphile_worker.contrib.dashboard._auth import Identity
from graphile_worker.contrib.dashboard._encode import encode
from graphile_worker.contrib.dashboard._poller import Sample
from graphile_worker.contrib.dashboard._redaction import Redactor
from graphile_worker.contrib.dashboard._resources._common import (
    get_redactor,
    show_ended_job,
    show_finding,
)
from graphile_worker.contrib.dashboard._service import Service
from graphile_worker.contrib.dashboard._stream import format_event, merge_pings
from graphile_worker.contrib.dashboard._texts import PROBLEM_TITLES
from graphile_worker.contrib.dashboard._users import Permission
from graphile_worker.contrib.dashboard._wording import (
    describe_outage,
    describe_verdict,
    judge_lateness,
    link_jobs,
    list_stats,
    write_sentence,
)
from graphile_worker.ops.diagnostics.findings import (
    Finding,
    FindingId,
    QueueHealth,
    Severity,
    SubjectKind,
    assess_health,
)
from graphile_worker.ops.pauses import PauseKind
from graphile_worker.ops.pools import PoolHealth, PoolInfo, count_slots, is_served
from graphile_worker.ops.snapshot import Snapshot, TaskCount
from graphile_worker.ops.states import JobState

logger = logging.getLogger("graphile_worker.dashboard")

MAX_TASKS = 60

# Each process counts its versions from 0.
PROCESS_ID = secrets.token_hex(8)

# The states of the jobs that a finding is about, for the link to them.
LINKED_STATES = {
    FindingId.LATE: (JobState.READY,),
    FindingId.UNHANDLED_TASK: (JobState.READY,),
    FindingId.FAILING: (JobState.RETRYING, JobState.FAILED),
    FindingId.PERMANENTLY_FAILED: (JobState.FAILED,),
    FindingId.QUEUE_BLOCKED: (JobState.WAITING,),
    FindingId.QUEUE_PAUSED: (JobState.WAITING,),
    FindingId.TASK_PAUSED: (JobState.READY,),
    FindingId.STALE_LOCKS: (JobState.STALE,),
    FindingId.DEAD_POOL_LOCKS: (JobState.STALE,),
}
LINKED_PAGES = {
    FindingId.NO_WORKERS: "workers",
    FindingId.DEAD_POOLS: "workers",
    FindingId.UNREGISTERED_WORKERS: "workers",
    FindingId.POOL_CLOCK_OFFSET: "workers",
    FindingId.ROWS_HIDDEN: "diagnosis",
    FindingId.HELD_SNAPSHOT: "diagnosis",
    FindingId.DEAD_ROWS: "diagnosis",
}


async def get_overview(request: ApiRequest) -> object:
    """Return the last look at the queue, or 304 if the caller has it."""
    service = request.service
    await service.poller.get()
    tag = f'"{PROCESS_ID}-{service.poller.version}"'
    if request.raw.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"etag": tag})
    body = encode(build_overview(service))
    return Response(body, media_type="application/json", headers={"etag": tag})


async def get_stream(request: ApiRequest) -> Response:
    """Return a stream of events, until the session ends or the server stops."""
    identity = get_access(request.raw).identity
    owner = (identity and identity.session_id) or request.user.name
    if request.service.events.is_full(owner):
        raise Problem(503, "too_many_streams", "too many browsers are connected")
    return StreamingResponse(
        _generate_events(request, owner),
        media_type="text/event-stream",
        # Proxies must not collect events.
        headers={"x-accel-buffering": "no", "cache-control": "no-store"},
    )


async def _generate_events(request: ApiRequest, owner: str) -> AsyncIterator[bytes]:
    service = request.service
    checker = _SessionChecker(request)
    with service.events.open_stream(owner) as stream, service.poller.view():
        await service.poller.get()
        stream.put("overview", "overview", encode(build_overview(service)))
        async for events in merge_pings(stream):
            reason = "server_stops" if service.events.is_stopping else await checker.check()
            if reason is not None:
                yield format_event("bye", encode({"reason": reason}))
                return
            if events:
                yield events


class _SessionChecker:
    """Checks whether the person of a stream is still signed in."""

    def __init__(self, request: ApiRequest) -> None:
        self._request = request
        self._access = get_access(request.raw)
        self._recheck_at = time.monotonic() + self._request.service.timings.recheck

    async def check(self) -> str | None:
        identity = self._access.identity
        if identity is None or self._access.sessions.has_ended(identity):
            return "signed_out"
        if identity.session_id is None and time.monotonic() >= self._recheck_at:
            self._recheck_at = time.monotonic() + self._request.service.timings.recheck
            try:
                answer = await self._access.authentication.identify(self._request.raw)
            except Exception as error:
                # The browser asks for its session next, and gets this error as an answer.
                logger.warning("stream ended: %s", format_error_line(error))
                return "signed_out"
            if not isinstance(answer, Identity) or not answer.user.may(Permission.VIEW):
                return "signed_out"
        return None


def build_overview(service: Service) -> Mapping[str, object]:
    """Build the overview from what the poller knows."""
    poller = service.poller
    sample, outage = poller.latest, poller.outage
    described_outage = None
    if outage is not None:
        seconds = time.monotonic() - outage.since
        described_outage = {
            "since_seconds": round(seconds, 1),
            "code": outage.code,
            "title": PROBLEM_TITLES.get(outage.code, "The queue cannot be read"),
            "message": write_sentence(outage.message),
            "sentence": describe_outage(outage, seconds),
        }
    if sample is None:
        return _build_empty_overview() | {"version": poller.version, "outage": described_outage}
    return _build_from_sample(sample, get_redactor(service)) | {
        "version": poller.version,
        "outage": described_outage,
    }


def _build_empty_overview() -> dict[str, object]:
    return {
        "now": None,
        "taken_at": None,
        "age_seconds": None,
        "is_partial": True,
        "verdict": _build_verdict(QueueHealth.UNKNOWN),
        "stats": [],
        "alerts": [],
        "totals": dict.fromkeys(JobState),
        "oldest_ready_seconds": None,
        "oldest_ready_task": None,
        "rates": None,
        "drain_seconds": None,
        "slots": {"used": None, "total": None},
        "workers": dict.fromkeys(PoolHealth),
        "tasks": [],
        "task_count": 0,
        "series": [],
        "paused": {"queues": 0, "tasks": 0},
        "tallies": {},
        "ended": None,
        "interval_seconds": None,
        "snapshot_seconds": None,
        "server": None,
    }


def _build_from_sample(sample: Sample, redactor: Redactor) -> dict[str, object]:
    snapshot = sample.snapshot
    overview = _build_empty_overview() | {
        "now": sample.now,
        "taken_at": snapshot.now,
        "age_seconds": round(sample.age, 1),
        "is_partial": sample.is_partial,
        "oldest_ready_seconds": sample.oldest_ready,
        "oldest_ready_task": sample.oldest_ready_task,
        "rates": sample.rates,
        "stats": list_stats(sample),
        "workers": _count_workers(snapshot.pools),
        "series": sample.series,
        "interval_seconds": sample.interval,
        "server": {
            "database": snapshot.server.database,
            "role": snapshot.server.role,
            "level": snapshot.server.level,
        },
    }
    if sample.is_partial:
        return overview
    tasks = sorted(snapshot.tasks, key=_get_urgency)
    paused_queues = sum(queue.is_paused for queue in snapshot.queues)
    paused_tasks = {each.name for each in snapshot.pauses if each.kind is PauseKind.TASK}
    return overview | {
        "verdict": _build_verdict(assess_health(sample.findings), sample.findings),
        "alerts": [_build_alert(finding, snapshot, redactor) for finding in sample.findings],
        "totals": {state: snapshot.count(state) for state in JobState},
        "drain_seconds": None if sample.history is None else sample.history.seconds_until_drained,
        "slots": {"used": snapshot.running, "total": count_slots(snapshot.pools)},
        "tasks": [
            _build_task(task, snapshot, redactor, is_paused=task.identifier in paused_tasks)
            for task in tasks[:MAX_TASKS]
        ],
        "task_count": len(tasks),
        "paused": {"queues": paused_queues, "tasks": len(paused_tasks)},
        # Beside the names of pages.
        "tallies": {
            "errors": snapshot.count(JobState.FAILED),
            "queues": paused_queues,
            "tasks": len(paused_tasks),
            "workers": _count_workers(snapshot.pools)[PoolHealth.DEAD],
        },
        "ended": None
        if sample.recent is None
        else [show_ended_job(job, redactor) for job in sample.recent.ended],
        "snapshot_seconds": snapshot.duration,
    }


def _build_verdict(health: QueueHealth, findings: Iterable[Finding] = ()) -> object:
    return {"health": health, "sentence": describe_verdict(health, findings)}


def _build_alert(finding: Finding, snapshot: Snapshot, redactor: Redactor) -> object:
    return show_finding(finding, redactor) | {
        "link": _find_link(finding),
        "action": _find_action(finding, snapshot),
    }


def _find_link(finding: Finding) -> str | None:
    """Return the page that shows the jobs or the objects of a finding."""
    states = LINKED_STATES.get(finding.id)
    subject = finding.subject
    if states is None:
        return LINKED_PAGES.get(finding.id)
    if subject is None or subject.kind is SubjectKind.JOB:
        return link_jobs(*states)
    return link_jobs(*states, **{subject.kind: subject.name})


def _find_action(finding: Finding, snapshot: Snapshot) -> object:
    """Return the one safe action of a finding, or None."""
    subject = finding.subject
    if subject is None:
        return None
    match finding.id:
        case FindingId.QUEUE_PAUSED:
            return _build_action("resume_queue", subject.name, "Resume", Permission.PAUSE)
        case FindingId.TASK_PAUSED:
            return _build_action("resume_task", subject.name, "Resume", Permission.PAUSE)
        case FindingId.DEAD_POOL_LOCKS:
            return _build_action("recover_worker", subject.name, "Recover", Permission.RECOVER)
        case FindingId.QUEUE_BLOCKED if finding.severity is Severity.CRITICAL:
            # Only a dead worker makes it critical.
            holders = [each.pool_id for each in snapshot.queues if each.name == subject.name]
            if holders and holders[0] is not None:
                return _build_action("recover_worker", holders[0], "Recover", Permission.RECOVER)
    return None


def _build_action(kind: str, target: str, label: str, permission: Permission) -> object:
    name = quote(target, safe="")
    path, body, question = f"/{kind.removeprefix('resume_')}s/{name}/resume", {}, None
    if permission is Permission.RECOVER:
        path, body = "/workers/recover", {"ids": [target]}
        question = {
            "title": "Recover the jobs of a dead worker",
            "text": f"The locks of {target} are removed, and other workers run its jobs again. "
            "The server rejects this if the worker is alive.",
            "action": label,
        }
    return {
        "kind": kind,
        "target": target,
        "label": label,
        "permission": permission,
        "path": path,
        "body": body,
        "question": question,
    }


def _count_workers(pools: Iterable[PoolInfo]) -> dict[PoolHealth, int]:
    healths = [pool.health for pool in pools]
    return {health: healths.count(health) for health in PoolHealth}


def _get_urgency(task: TaskCount) -> tuple[object, ...]:
    oldest = -1.0 if task.oldest_ready is None else task.oldest_ready
    return (-oldest, -task[JobState.STALE], -task.failing, -task.running, task.identifier)


def _build_task(
    task: TaskCount, snapshot: Snapshot, redactor: Redactor, *, is_paused: bool
) -> dict[str, Any]:
    counts = {str(state): task[state] for state in JobState}
    is_run = is_served(snapshot.pools, task.identifier)
    return {
        "identifier": task.identifier,
        **counts,
        "oldest_ready_seconds": task.oldest_ready,
        "tone": judge_lateness(task.oldest_ready),
        "error": None if task.error is None else redactor.redact_text(task.error),
        "is_served": is_run,
        "is_paused": is_paused,
        "title": [
            {"link": [task.identifier, link_jobs(task=task.identifier)]},
            *[" ", {"warn": "paused"}] * is_paused,
            *[" ", {"bad": "no worker"}] * (is_run is False),
        ],
    }


ROUTES = (
    ApiRoute(
        method="GET",
        path="/overview",
        permission=Permission.VIEW,
        handler=get_overview,
        summary="Get the verdict, the alerts, the counts and the rates.",
        answer={"version": 1, "is_partial": False, "verdict": {"health": "healthy"}},
    ),
    ApiRoute(
        method="GET",
        path="/stream",
        permission=Permission.VIEW,
        handler=get_stream,
        summary="Stream the overview and the progress of bulk actions as server-sent events.",
    ),
)
