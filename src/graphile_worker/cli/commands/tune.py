"""`graphile-worker tune`: settings that suit a queue, printed as SQL, or set."""

from collections.abc import Iterator

import click

from graphile_worker.cli.flags import current_settings, with_flags_of
from graphile_worker.cli.sources import client_of, schema_of
from graphile_worker.logs import printable
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sql.storage import HeldSnapshot
from graphile_worker.sql.tuning import TableTuning, Tuning, tuning_sql


@click.command()
@click.option("--apply", is_flag=True, help="Set what is said of the tables.")
@with_flags_of("connection", "schema")
def tune(apply: bool) -> None:
    """Say which settings suit a queue, as SQL; change nothing unless asked to."""
    settings = current_settings()
    with client_of(settings) as client:
        before = client.tuning()
        changed = client.apply_tuning() if apply else []
    schemas = Schemas.named(schema_of(settings))
    tables = (
        [_outcome(each, changed) for each in before.tables]
        if apply
        else [_table(each, schemas) for each in before.tables]
    )
    # What others may have named must not end a comment: the whole can be given to psql.
    said = [
        "-- " + printable(" ".join(line.splitlines()))
        for line in (*_server(before), *_held(before))
    ]
    click.echo("\n".join([*tables, *said]))
    if apply and not all(each.is_set or each.table in changed for each in before.tables):
        click.get_current_context().exit(1)


def _table(table: TableTuning, schemas: Schemas) -> str:
    if table.is_set:
        return f"-- {table.table}: all is set.\n"
    whose = "" if table.may_change else f"-- Only its owner may do this: {table.owner!r}.\n"
    return f"{whose}{tuning_sql(table, schemas)}\n"


def _outcome(table: TableTuning, changed: list[str]) -> str:
    if table.table in changed:
        said = "changed"
    elif table.is_set:
        said = "was set already"
    else:
        said = f"not changed, only its owner may: {table.owner!r}"
    return f"-- {table.table}: {said}."


def _server(tuning: Tuning) -> Iterator[str]:
    if not tuning.server:
        yield "The server: nothing to say."
        return
    yield "The server, for who may change it:"
    for each in tuning.server:
        yield f"  {each.sql};"
        yield f"    is {each.now}; {each.reason}."


def _held(tuning: Tuning) -> Iterator[str]:
    if tuning.held:
        yield "Held right now: while it lasts, no row that died since can be removed, so end it."
    else:
        yield "No old snapshot is held right now."
    for each in tuning.held:
        yield f"  {_holder(each)}"
    if not tuning.sees_all_sessions:
        yield "This role does not see all sessions: grant it pg_read_all_stats."


def _holder(held: HeldSnapshot) -> str:
    state = f", {held.state}" if held.state else ""
    since = "" if held.seconds is None else f" for {held.seconds:,} s"
    return f"{held.kind} {held.name}{state}{since}, {held.transactions:,} transactions behind"
