"""The command `limits`."""

import click

from graphile_worker._cli.printing import format_time, print_json, print_table
from graphile_worker._cli.settings.layers import Settings
from graphile_worker._cli.settings.resolve import open_database, resolve_actor
from graphile_worker._db.database import run_plan_sync
from graphile_worker._support.error_format import make_printable
from graphile_worker.limits import ConcurrencyLimit
from graphile_worker.ops.limits import (
    LimitState,
    encode_state,
    format_change,
    format_use,
    parse_limit,
    plan_list_limits,
    plan_reset_limit,
    plan_set_rate,
    plan_set_slots,
)

LIMIT_HEADERS = ("name", "limit", "use", "in the app", "set by", "since")


def print_limits(settings: Settings, *, as_json: bool) -> None:
    """Print the limits that workers have registered."""
    with open_database(settings) as database:
        states = run_plan_sync(database, plan_list_limits(database.schemas))
    if as_json:
        print_json({"limits": [encode_state(each) for each in states]})
        return
    if not states:
        click.echo("no worker has registered a limit", err=True)
        return
    print_table(LIMIT_HEADERS, [_build_row(each) for each in states])


def set_limit(
    settings: Settings, name: str, value: str, *, burst: int | None, as_json: bool
) -> None:
    """Set the values of a limit, and print it."""
    limit = parse_limit(value, burst=burst)
    with open_database(settings) as database:
        actor = resolve_actor(settings)
        if isinstance(limit, ConcurrencyLimit):
            plan = plan_set_slots(name, limit.slots, database.schemas, actor=actor)
        else:
            plan = plan_set_rate(
                name, limit.starts, limit.per, database.schemas, burst=burst, actor=actor
            )
        _print_changed(run_plan_sync(database, plan), as_json)


def reset_limit(settings: Settings, name: str, *, as_json: bool) -> None:
    """Use the values of the app again, and print them."""
    with open_database(settings) as database:
        plan = plan_reset_limit(name, database.schemas, actor=resolve_actor(settings))
        state = run_plan_sync(database, plan)
    if state is not None:
        _print_changed(state, as_json)
    elif as_json:
        print_json({"limit": None})
    else:
        click.echo(make_printable(f"limit {name!r} has the values of the app"), err=True)


def _print_changed(state: LimitState, as_json: bool) -> None:
    if as_json:
        print_json({"limit": encode_state(state)})
        return
    click.echo(make_printable(f"limit {state.name!r}: {format_change(state)}"))


def _build_row(state: LimitState) -> tuple[str | None, ...]:
    is_set = state.set_at is not None
    return (
        state.name,
        str(state.limit),
        format_use(state),
        str(state.defined) if is_set else None,
        state.set_by,
        None if state.set_at is None else format_time(state.set_at),
    )
