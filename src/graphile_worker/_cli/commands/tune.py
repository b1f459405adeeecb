"""`graphile-worker tune`: settings that suit a queue, printed as SQL, or set."""

from collections.abc import Iterator

import click

from graphile_worker._cli.settings.flags import current_settings, setting_flags
from graphile_worker._cli.settings.resolve import open_client, resolve_schema
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.tuning import TableTuning, Tuning, render_tuning_sql
from graphile_worker._sql.queries.storage import VacuumBlocker
from graphile_worker._support.logs import make_printable


@click.command()
@click.option("--apply", is_flag=True, help="Set what is said of the tables.")
@setting_flags("connection", "schema")
def tune(apply: bool) -> None:
    """Say which settings suit a queue, as SQL; change nothing unless asked to."""
    settings = current_settings()
    with open_client(settings) as client:
        before = client.get_tuning()
        changed = client.apply_tuning() if apply else []
    schemas = Schemas.from_names(resolve_schema(settings))
    tables = (
        [_format_result(each, changed) for each in before.tables]
        if apply
        else [_format_table(each, schemas) for each in before.tables]
    )
    # What others may have named must not end a comment: the whole can be given to psql.
    said = [
        "-- " + make_printable(" ".join(line.splitlines()))
        for line in (*_format_server(before), *_format_vacuum_blockers(before))
    ]
    click.echo("\n".join([*tables, *said]))
    if apply and not all(each.is_set or each.table in changed for each in before.tables):
        click.get_current_context().exit(1)


def _format_table(table: TableTuning, schemas: Schemas) -> str:
    if table.is_set:
        return f"-- {table.table}: all is set.\n"
    whose = "" if table.can_change else f"-- Only its owner may do this: {table.owner!r}.\n"
    return f"{whose}{render_tuning_sql(table, schemas)}\n"


def _format_result(table: TableTuning, changed: list[str]) -> str:
    if table.table in changed:
        said = "changed"
    elif table.is_set:
        said = "was set already"
    else:
        said = f"not changed, only its owner may: {table.owner!r}"
    return f"-- {table.table}: {said}."


def _format_server(tuning: Tuning) -> Iterator[str]:
    if not tuning.server:
        yield "The server: nothing to say."
        return
    yield "The server, for who may change it:"
    for each in tuning.server:
        yield f"  {each.sql};"
        yield f"    is {each.current_value}; {each.reason}."


def _format_vacuum_blockers(tuning: Tuning) -> Iterator[str]:
    if tuning.vacuum_blockers:
        yield "Held right now: while it lasts, no row that died since can be removed, so end it."
    else:
        yield "No old snapshot is held right now."
    for each in tuning.vacuum_blockers:
        yield f"  {_format_vacuum_blocker(each)}"
    if not tuning.can_see_all_sessions:
        yield "This role does not see all sessions: grant it pg_read_all_stats."


def _format_vacuum_blocker(blocker: VacuumBlocker) -> str:
    state = f", {blocker.state}" if blocker.state else ""
    since = "" if blocker.seconds is None else f" for {blocker.seconds:,} s"
    return (
        f"{blocker.kind} {blocker.name}{state}{since}, {blocker.transactions:,} transactions behind"
    )
