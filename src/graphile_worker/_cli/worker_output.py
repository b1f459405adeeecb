"""Overseeing workers: `workers list` and `workers recover`."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import click

from graphile_worker._cli.bulk_commands import confirm
from graphile_worker._cli.printing import pluralize, print_json, print_table
from graphile_worker._cli.settings.layers import Settings
from graphile_worker._cli.settings.resolve import open_database
from graphile_worker._db.database import SyncDatabase, run_plan_sync
from graphile_worker._sql.plans.admin import plan_list_locked_jobs, plan_recover_jobs
from graphile_worker._support.durations import format_duration
from graphile_worker._support.logs import make_printable
from graphile_worker.errors import ConfigurationError, GraphileWorkerError
from graphile_worker.jobs import Job
from graphile_worker.ops.pools import (
    PAUSED_PREFIX,
    PoolHealth,
    PoolInfo,
    list_dead_pool_ids,
    plan_get_lock_holders,
)
from graphile_worker.ops.search import limit_plan, with_limits

WORKER_HEADERS = (
    "worker",
    "health",
    "heard of",
    "runtime",
    "where",
    "version",
    "slots",
    "jobs",
    "queues",
)


class NoSuchWorker(GraphileWorkerError):
    """No registry knows it, and it holds nothing."""

    def __init__(self, id: str) -> None:
        super().__init__(
            f"there is no worker {make_printable(id)}: no registry knows it and it holds no jobs. "
            "`graphile-worker workers list` names all"
        )


def print_workers(settings: Settings, *, as_json: bool) -> None:
    """Every worker that is known."""
    with open_database(settings) as database:
        pools = _get_pools(database)
    if as_json:
        print_json({"workers": pools})
        return
    if not pools:
        click.echo("no workers are known", err=True)
        return
    print_table(
        WORKER_HEADERS, [_build_row(pool) for pool in pools], right_aligned="slots jobs queues"
    )


def recover_jobs(
    settings: Settings,
    ids: Sequence[str],
    *,
    all_dead: bool,
    force: bool,
    is_confirmed: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Let the jobs of these workers run elsewhere."""
    with open_database(settings) as database:
        schemas = database.schemas
        pools = _get_pools(database)
        chosen = list(dict.fromkeys([*ids, *(list_dead_pool_ids(pools) if all_dead else ())]))
        _reject_unknown(chosen, pools)
        if not force:
            _reject_alive(chosen, pools)
        held = run_plan_sync(database, limit_plan(plan_list_locked_jobs(chosen, schemas), schemas))
        if dry_run:
            _print_recovered(chosen, held, as_json, is_done=False)
            return
        if chosen:
            question = (
                f"recover {pluralize(len(held), 'job')} of {pluralize(len(chosen), 'worker')}?"
            )
            confirm(question, "What a living worker still runs may run twice.", is_confirmed)
        if chosen and not force:
            # One may have been heard of again while somebody read the question.
            _reject_alive(chosen, _get_pools(database))
        plan = plan_recover_jobs(chosen, timedelta(0), schemas)
        recovered = run_plan_sync(database, limit_plan(plan, schemas))
    _print_recovered(chosen, recovered, as_json)


def _get_pools(database: SyncDatabase) -> list[PoolInfo]:
    schemas = database.schemas
    return run_plan_sync(
        database, plan_get_lock_holders(schemas, lambda query: with_limits(query, schemas))
    )


def _reject_unknown(ids: Iterable[str], pools: Sequence[PoolInfo]) -> None:
    known = {pool.id for pool in pools}
    for each in ids:
        # A pause of a named queue is released by its holder's name, too.
        if each not in known and not each.startswith(PAUSED_PREFIX):
            raise NoSuchWorker(each)


def _reject_alive(ids: Iterable[str], pools: Sequence[PoolInfo]) -> None:
    alive = {pool.id: pool for pool in pools if pool.health is PoolHealth.ALIVE}
    for each in ids:
        if each in alive:
            raise ConfigurationError(
                f"worker {make_printable(each)} lives, heard of {_format_heartbeat(alive[each])}: "
                "stop it "
                "first, or say --force, and what it runs may run twice"
            )


def _print_recovered(
    ids: Sequence[str], jobs: Sequence[Job], as_json: bool, *, is_done: bool = True
) -> None:
    if as_json:
        said = {"workers": list(ids), "jobs": [job.id for job in jobs]}
        print_json(said if is_done else {"dry_run": True, **said})
        return
    word = "recovered" if is_done else "would recover"
    click.echo(f"{word} {pluralize(len(jobs), 'job')} of {pluralize(len(ids), 'worker')}")


def _build_row(pool: PoolInfo) -> tuple[Any, ...]:
    place = "/".join(str(each) for each in (pool.host, pool.pid) if each is not None)
    return (
        pool.id,
        pool.health,
        _format_heartbeat(pool),
        pool.runtime,
        place,
        pool.version,
        pool.concurrency,
        pool.jobs,
        pool.queues,
    )


def _format_heartbeat(pool: PoolInfo) -> str | None:
    return (
        None
        if pool.seconds_since_heartbeat is None
        else f"{format_duration(timedelta(seconds=pool.seconds_since_heartbeat))} ago"
    )
