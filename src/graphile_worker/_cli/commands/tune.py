"""`graphile-worker tune`: print settings for a queue as SQL, or apply them."""

from collections.abc import Iterator

import click

from graphile_worker._cli.settings.flags import current_queue_settings, setting_flags
from graphile_worker._cli.settings.resolve import open_client, resolve_schema
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.tuning import TableTuning, Tuning, render_tuning_sql
from graphile_worker._support.error_format import make_printable
from graphile_worker.ops.text import format_vacuum_blocker


@click.command()
@click.option("--apply", is_flag=True, help="Apply the settings of the tables now.")
@setting_flags("connection", "schema")
def tune(apply: bool) -> None:
    """Print recommended PostgreSQL settings as SQL.

    Changes nothing without --apply.
    """
    settings = current_queue_settings()
    with open_client(settings) as client:
        tuning = client.get_tuning()
        changed = client.apply_tuning() if apply else []
    schemas = Schemas.from_names(resolve_schema(settings))
    tables = (
        [_format_result(each, changed) for each in tuning.tables]
        if apply
        else [_format_table(each, schemas) for each in tuning.tables]
    )
    click.echo("\n".join([*tables, *format_comments(tuning)]))
    if apply and not all(each.is_set or each.table in changed for each in tuning.tables):
        click.get_current_context().exit(1)


def format_comments(tuning: Tuning) -> list[str]:
    """Format the advice about the server and the old snapshots as SQL comments."""
    lines = (*_format_server(tuning), *_format_vacuum_blockers(tuning))
    # psql can run the output: a name with a line break must not end a comment.
    return ["-- " + make_printable(" ".join(line.splitlines())) for line in lines]


def _format_table(table: TableTuning, schemas: Schemas) -> str:
    if table.is_set:
        return f"-- {table.table}: all is set.\n"
    owner = "" if table.can_change else f"-- Only its owner can do this: {table.owner!r}.\n"
    return f"{owner}{render_tuning_sql(table, schemas)}\n"


def _format_result(table: TableTuning, changed: list[str]) -> str:
    if table.table in changed:
        result = "changed"
    elif table.is_set:
        result = "already set"
    else:
        result = f"not changed, only its owner can: {table.owner!r}"
    return f"-- {table.table}: {result}."


def _format_server(tuning: Tuning) -> Iterator[str]:
    if not tuning.server:
        yield "The server: no changes."
        return
    yield "The server, to be changed by an administrator:"
    for each in tuning.server:
        yield f"  {each.sql};"
        yield f"    is {each.current_value}; {each.reason}."


def _format_vacuum_blockers(tuning: Tuning) -> Iterator[str]:
    if tuning.vacuum_blockers:
        yield "Old snapshots: until they end, vacuum cannot remove rows that died since."
    else:
        yield "No old snapshot is held right now."
    for each in tuning.vacuum_blockers:
        yield f"  {format_vacuum_blocker(each)}"
    if not tuning.can_see_all_sessions:
        yield "This role does not see all sessions: grant it pg_read_all_stats."
