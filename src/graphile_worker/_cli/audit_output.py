"""The command `audit`."""

from collections.abc import Sequence
from typing import Any

import click

from graphile_worker._cli.printing import format_time, print_json, print_table
from graphile_worker._cli.settings.layers import Settings
from graphile_worker._cli.settings.resolve import open_database
from graphile_worker._db.database import run_plan_sync
from graphile_worker.ops.audit import AuditEntry, plan_list_audit

AUDIT_HEADERS = ("id", "at", "actor", "role", "action", "count", "jobs", "filter", "note")
MAX_SHOWN_IDS = 5
MAX_FILTER_CHARS = 60


def print_audit(settings: Settings, *, as_json: bool, **options: Any) -> None:
    """Print the entries of the audit, the newest first."""
    with open_database(settings) as database:
        entries = run_plan_sync(database, plan_list_audit(database.schemas, **options))
    if as_json:
        print_json({"entries": entries})
        return
    if not entries:
        click.echo("no entries", err=True)
        return
    print_table(AUDIT_HEADERS, [_build_row(entry) for entry in entries], right_aligned="id count")


def _build_row(entry: AuditEntry) -> tuple[Any, ...]:
    return (
        entry.id,
        format_time(entry.at),
        entry.actor,
        entry.role,
        entry.action,
        entry.count,
        _format_ids(entry.job_ids),
        _shorten(entry.filter),
        entry.note,
    )


def _format_ids(ids: Sequence[int]) -> str:
    shown = [*map(str, ids[:MAX_SHOWN_IDS]), *["…"][: len(ids) > MAX_SHOWN_IDS]]
    return ",".join(shown)


def _shorten(text: str | None) -> str | None:
    if text is None or len(text) <= MAX_FILTER_CHARS:
        return text
    return f"{text[: MAX_FILTER_CHARS - 1]}…"
