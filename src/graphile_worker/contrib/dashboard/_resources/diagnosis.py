"""The diagnosis of `graphile-worker doctor`."""

from collections.abc import Sequence
from datetime import datetime

from graphile_worker.contrib.dashboard._api import ApiRequest, ApiRoute
from graphile_worker.contrib.dashboard._resources._common import (
    Cache,
    get_redactor,
    show_finding,
)
from graphile_worker.contrib.dashboard._users import Permission
from graphile_worker.contrib.dashboard._wording import capitalize
from graphile_worker.ops.diagnostics import (
    DoctorOptions,
    Finding,
    QueueHealth,
    Report,
    examine,
)

# A diagnosis opens two connections, so all browsers share one.
_REPORTS = Cache(seconds=30.0)

COUNTING = "The jobs are being counted. Findings about jobs, locks and workers follow: check again."
NO_FINDINGS = "No findings. The database, the schema and the queue are as they should be."


async def get_diagnosis(request: ApiRequest) -> object:
    """Return the report, at most 30 s old. The poller has counted the jobs for it."""
    service = request.service
    sample = await service.poller.get()
    queue_findings: Sequence[Finding] | None = None
    counted_at: datetime | None = None
    is_partial = False
    # In an outage, the report itself shows how far it gets.
    if sample is not None and service.poller.outage is None:
        # A snapshot of a large table takes seconds, and the poller takes them within its budget.
        is_partial = sample.is_partial
        queue_findings = sample.findings
        counted_at = None if is_partial else sample.snapshot.now

    async def diagnose() -> tuple[Report, datetime | None]:
        report = await examine(
            service.conninfo,
            schema=service.schemas.shared,
            ext_schema=service.schemas.companion,
            options=DoctorOptions(timeout=service.settings.query_timeout),
            queue_findings=queue_findings,
        )
        return report, counted_at

    report, counted_at = await _REPORTS.get(service, diagnose, key=is_partial)
    redactor = get_redactor(service)
    findings = [show_finding(each, redactor) for each in report.findings]
    facts = [[capitalize(name.replace("_", " ")), value] for name, value in report.facts.items()]
    notices: list[object] = []
    if is_partial:
        notices.append({"kind": "info", "text": COUNTING})
    elif not findings:
        notices.append({"kind": "good", "text": NO_FINDINGS})
    view: dict[str, object] = {
        "notices": notices,
        "alerts": findings,
        "panels": [{"title": "Facts", "facts": facts}],
    }
    if counted_at is not None:
        view["hint"] = [
            "The report of “graphile-worker doctor”. Jobs were counted ",
            {"ago": counted_at},
            ", the rest was checked within the last 30 s.",
        ]
    return {
        "verdict": QueueHealth.UNKNOWN if is_partial else report.verdict,
        "facts": dict(report.facts),
        "findings": findings,
        "view": view,
    }


ROUTES = (
    ApiRoute(
        method="GET",
        path="/diagnosis",
        permission=Permission.VIEW,
        handler=get_diagnosis,
        summary="Diagnose the queue and its database.",
        answer={
            "verdict": "healthy",
            "facts": {"server": "PostgreSQL 18.1"},
            "findings": [
                {
                    "id": "no-workers",
                    "severity": "critical",
                    "title": "No worker is alive: 3 jobs ready, the oldest for 2m40s",
                    "evidence": ["No heartbeat within the lease; dead workers: 0"],
                    "advice": "Start a worker.",
                    "shell": "graphile-worker run",
                    "sql": None,
                    "affected": 3,
                    "subject": None,
                }
            ],
            "view": {},
        },
    ),
)
