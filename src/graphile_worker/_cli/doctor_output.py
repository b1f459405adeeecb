"""The diagnosis of `graphile-worker doctor`, and its report as text or JSON."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import timedelta

from graphile_worker._cli.settings.layers import Settings
from graphile_worker._cli.settings.resolve import resolve_external_tasks
from graphile_worker._support.error_format import make_printable
from graphile_worker.ops.diagnostics import DoctorOptions, Finding, Report, examine
from graphile_worker.ops.diagnostics.findings import count_severities


def run_doctor(
    settings: Settings, *, timeout: timedelta | None, max_transaction_age: timedelta | None
) -> Report:
    """Diagnose the database of the settings, for workers with the same settings."""
    worker = settings.worker_options
    options = DoctorOptions(
        listen=worker.listen,
        prepared_statements=worker.prepared_statements,
        external_tasks=resolve_external_tasks(settings),
    )
    if timeout is not None:
        options = replace(options, timeout=timeout)
    if max_transaction_age is not None:
        thresholds = replace(options.thresholds, max_transaction_age=max_transaction_age)
        options = replace(options, thresholds=thresholds)
    return asyncio.run(
        examine(
            settings.value("connection"),
            schema=settings.value("schema"),
            ext_schema=settings.value("ext_schema"),
            options=options,
        )
    )


def get_exit_code(report: Report, *, strict: bool) -> int:
    """Return the exit code for monitoring. The code 2 is for usage errors."""
    if report.is_critical:
        return 3
    return 1 if report.has_warnings or (strict and report.findings) else 0


def format_report_json(report: Report) -> str:
    """Format the report as one JSON object."""
    values = {
        "verdict": report.verdict,
        "facts": dict(report.facts),
        "findings": [asdict(each) for each in report.findings],
        "is_critical": report.is_critical,
    }
    return json.dumps(values, indent=2)


def format_report(report: Report) -> str:
    """Format the report for people: facts, findings, and how many of each severity."""
    return "\n".join(_format_lines(report))


def _format_lines(report: Report) -> Iterator[str]:
    facts = {**report.facts, "verdict": report.verdict}
    width = max(map(len, facts))
    for name, fact in facts.items():
        yield f"{name:<{width}}  {make_printable(fact)}"
    for each in report.findings:
        yield from ("", *_format_finding(each))
    yield from ("", count_severities(report.findings) or "no findings")


def _format_finding(finding: Finding) -> Iterator[str]:
    yield f"{finding.severity.upper()} {finding.id}: {make_printable(finding.title)}"
    for line in finding.evidence:
        yield f"  - {make_printable(line)}"
    yield f"  {make_printable(finding.advice)}"
    for line in (finding.shell or "").splitlines():
        yield f"    $ {make_printable(line)}"
    for line in (finding.sql or "").splitlines():
        yield f"    {make_printable(line)}"
