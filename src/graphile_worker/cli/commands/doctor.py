"""`graphile-worker doctor`: what is wrong with a queue and its surroundings, and what to type."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta

import click

from graphile_worker.administration.doctor import (
    DoctorOptions,
    Finding,
    Report,
    Severity,
    examine,
)
from graphile_worker.cli.flags import current_settings, with_flags_of
from graphile_worker.cli.settings import Settings
from graphile_worker.cli.values import read_duration
from graphile_worker.logs import printable


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic in newer ones only
    """A time such as `30s`."""

    name = "duration"

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> timedelta:
        span = value if isinstance(value, timedelta) else read_duration(str(value))
        if not span:
            self.fail(f"expected a time such as 500ms, 10s or 1m30s, got {value}.", parameter)
        return span


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--strict", is_flag=True, help="Warnings end with 1, too.")
@click.option(
    "--timeout",
    type=Duration(),
    metavar="DURATION",
    default=DoctorOptions().timeout,
    help="Give up a question to the database after so long (default: 10s).",
)
@click.option(
    "--held-for",
    type=Duration(),
    metavar="DURATION",
    default=DoctorOptions().held_for,
    help="Name transactions that are open for longer (default: 5m).",
)
@with_flags_of("connection", "schema", "ext_schema", "listen", "prepared_statements")
def doctor(as_json: bool, strict: bool, timeout: timedelta, held_for: timedelta) -> None:
    """Say what is wrong with the queue and its surroundings, and what to type; change nothing."""
    settings = current_settings()
    options = _options(settings, timeout, held_for)
    report = asyncio.run(
        examine(
            settings.value("connection"),
            schema=settings.value("schema"),
            ext_schema=settings.value("ext_schema"),
            options=options,
        )
    )
    click.echo(_json(report) if as_json else "\n".join(_told(report)))
    if report.is_critical or (strict and report.findings):
        click.get_current_context().exit(1)


def _options(settings: Settings, timeout: timedelta, held_for: timedelta) -> DoctorOptions:
    """How the workers are set up is the same as for a worker that is started here."""
    worker = settings.options
    return DoctorOptions(
        timeout=timeout,
        held_for=held_for,
        listen=worker.listen,
        prepared_statements=worker.prepared_statements,
    )


def _json(report: Report) -> str:
    found = {
        "facts": dict(report.facts),
        "findings": [asdict(each) for each in report.findings],
        "is_critical": report.is_critical,
    }
    return json.dumps(found, indent=2)


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
