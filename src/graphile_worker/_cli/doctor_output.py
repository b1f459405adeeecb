"""Diagnosis: what the doctor finds by these settings, and how it is told."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta

from graphile_worker._cli.settings.layers import Settings
from graphile_worker._support.logs import make_printable
from graphile_worker.ops.diagnostics import (
    DoctorOptions,
    Finding,
    Report,
    Severity,
    examine,
)


def run_doctor(
    settings: Settings, *, timeout: timedelta | None, max_transaction_age: timedelta | None
) -> Report:
    """What is found, for workers that are set up like one that is started here."""
    worker = settings.worker_options
    given = {"timeout": timeout, "max_transaction_age": max_transaction_age}
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


def format_report_json(report: Report) -> str:
    found = {
        "facts": dict(report.facts),
        "findings": [asdict(each) for each in report.findings],
        "is_critical": report.is_critical,
    }
    return json.dumps(found, indent=2)


def format_report(report: Report) -> str:
    """For people: what was looked at, what is wrong, and how much of it."""
    return "\n".join(_format_lines(report))


def _format_lines(report: Report) -> Iterator[str]:
    width = max(map(len, report.facts))
    for name, fact in report.facts.items():
        yield f"{name:<{width}}  {make_printable(fact)}"
    for each in report.findings:
        yield from ("", *_format_finding(each))
    yield from ("", _format_summary(report))


def _format_finding(finding: Finding) -> Iterator[str]:
    yield f"{finding.severity.upper()} {finding.id}: {make_printable(finding.title)}"
    for line in finding.evidence:
        yield f"  - {make_printable(line)}"
    yield f"  {make_printable(finding.advice)}"
    for line in (finding.shell or "").splitlines():
        yield f"    $ {make_printable(line)}"
    for line in (finding.sql or "").splitlines():
        yield f"    {make_printable(line)}"


def _format_summary(report: Report) -> str:
    if not report.findings:
        return "Nothing is wrong."
    critical = sum(each.severity is Severity.CRITICAL for each in report.findings)
    warnings = len(report.findings) - critical
    return f"{critical} critical, {warnings} {'warning' if warnings == 1 else 'warnings'}"
