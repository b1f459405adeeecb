"""Diagnosis: what the doctor finds by these settings, and how it is told."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta

from graphile_worker.administration.doctor import (
    DoctorOptions,
    Finding,
    Report,
    Severity,
    examine,
)
from graphile_worker.cli.settings import Settings
from graphile_worker.logs import printable


def diagnosed(
    settings: Settings, *, timeout: timedelta | None, held_for: timedelta | None
) -> Report:
    """What is found, for workers that are set up like one that is started here."""
    worker = settings.options
    given = {"timeout": timeout, "held_for": held_for}
    options = DoctorOptions(
        listen=worker.listen,
        prepared_statements=worker.prepared_statements,
        **{name: span for name, span in given.items() if span is not None},
    )
    return asyncio.run(
        examine(
            settings.value("connection"),
            schema=settings.value("schema"),
            ext_schema=settings.value("ext_schema"),
            options=options,
        )
    )


def shown_as_json(report: Report) -> str:
    found = {
        "facts": dict(report.facts),
        "findings": [asdict(each) for each in report.findings],
        "is_critical": report.is_critical,
    }
    return json.dumps(found, indent=2)


def shown(report: Report) -> str:
    """For people: what was looked at, what is wrong, and how much of it."""
    return "\n".join(_told(report))


def _told(report: Report) -> Iterator[str]:
    width = max(map(len, report.facts))
    for name, fact in report.facts.items():
        yield f"{name:<{width}}  {printable(fact)}"
    for each in report.findings:
        yield from ("", *_finding(each))
    yield from ("", _summary(report))


def _finding(finding: Finding) -> Iterator[str]:
    yield f"{finding.severity.upper()} {finding.id}: {printable(finding.title)}"
    for line in finding.evidence:
        yield f"  - {printable(line)}"
    yield f"  {printable(finding.advice)}"
    for line in (finding.shell or "").splitlines():
        yield f"    $ {printable(line)}"
    for line in (finding.sql or "").splitlines():
        yield f"    {printable(line)}"


def _summary(report: Report) -> str:
    if not report.findings:
        return "Nothing is wrong."
    critical = sum(each.severity is Severity.CRITICAL for each in report.findings)
    warnings = len(report.findings) - critical
    return f"{critical} critical, {warnings} {'warning' if warnings == 1 else 'warnings'}"
