"""The diagnosis of `graphile-worker doctor`."""

from graphile_worker.contrib.dashboard._api import ApiRequest, ApiRoute
from graphile_worker.contrib.dashboard._resources._common import (
    Cache,
    get_redactor,
    show_finding,
)
from graphile_worker.contrib.dashboard._users import Permission
from graphile_worker.contrib.dashboard._wording import capitalize
from graphile_worker.ops.diagnostics import DoctorOptions, Report, examine

# A diagnosis opens two connections, so all browsers share one.
_REPORTS = Cache(seconds=30.0)

NO_FINDINGS = "No findings. The database, the schema and the queue are as they should be."


async def get_diagnosis(request: ApiRequest) -> object:
    """Return the report, at most 30 s old."""
    service = request.service

    async def diagnose() -> Report:
        return await examine(
            service.conninfo,
            schema=service.schemas.shared,
            ext_schema=service.schemas.companion,
            options=DoctorOptions(timeout=service.settings.query_timeout),
        )

    report = await _REPORTS.get(service, diagnose)
    redactor = get_redactor(service)
    findings = [show_finding(each, redactor) for each in report.findings]
    facts = [[capitalize(name.replace("_", " ")), value] for name, value in report.facts.items()]
    return {
        "verdict": report.verdict,
        "facts": dict(report.facts),
        "findings": findings,
        "view": {
            "notices": [] if findings else [{"kind": "good", "text": NO_FINDINGS}],
            "alerts": findings,
            "panels": [{"title": "Facts", "facts": facts}],
        },
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
