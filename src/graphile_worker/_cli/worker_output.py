"""The commands `workers list` and `workers recover`."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import click

from graphile_worker._cli.bulk_commands import confirm
from graphile_worker._cli.printing import print_json, print_table
from graphile_worker._cli.settings.layers import Settings
from graphile_worker._cli.settings.resolve import open_database, resolve_actor
from graphile_worker._db.database import SyncDatabase, run_plan_sync
from graphile_worker._sql.plans.admin import plan_list_locked_jobs, plan_recover_jobs
from graphile_worker._sql.queries.pauses import PAUSED_PREFIX
from graphile_worker._support.error_format import make_printable
from graphile_worker._support.text import pluralize
from graphile_worker.errors import ConfigurationError, GraphileWorkerError
from graphile_worker.jobs import Job
from graphile_worker.ops.pools import (
    PoolHealth,
    PoolInfo,
    list_dead_pool_ids,
    plan_get_lock_holders,
)
from graphile_worker.ops.search import limit_plan, with_limits
from graphile_worker.ops.text import format_seconds

WORKER_HEADERS = (
    "worker",
    "health",
    "heartbeat",
    "runtime",
    "where",
    "version",
    "slots",
    "jobs",
    "queues",
)


class NoSuchWorker(GraphileWorkerError):
    """Raised for a worker that is not registered and holds no locks."""

    def __init__(self, id: str) -> None:
        super().__init__(
            f"unknown worker {make_printable(id)}: it is not registered and holds no locks. "
            "`graphile-worker workers list` lists all workers."
        )


def print_workers(settings: Settings, *, as_json: bool) -> None:
    """Print the registered workers and those that hold locks."""
    with open_database(settings) as database:
        pools = _get_pools(database)
    if as_json:
        print_json({"workers": pools})
        return
    if not pools:
        click.echo("no workers found", err=True)
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
    """Release the locks of these workers, so that other workers run the jobs."""
    with open_database(settings) as database:
        schemas = database.schemas
        pools = _get_pools(database)
        chosen = list(dict.fromkeys([*ids, *(list_dead_pool_ids(pools) if all_dead else ())]))
        _reject_unknown(chosen, pools)
        if not force:
            _reject_alive(chosen, pools)
        locked = run_plan_sync(
            database, limit_plan(plan_list_locked_jobs(chosen, schemas), schemas)
        )
        if dry_run:
            _print_recovered(chosen, locked, as_json, is_done=False)
            return
        if chosen:
            question = (
                f"recover {pluralize(len(locked), 'job')} of {pluralize(len(chosen), 'worker')}?"
            )
            confirm(question, "Jobs that a worker still runs may run twice.", is_confirmed)
        if chosen and not force:
            # A worker may have sent a heartbeat since the question was printed.
            _reject_alive(chosen, _get_pools(database))
        plan = plan_recover_jobs(chosen, timedelta(0), schemas, actor=resolve_actor(settings))
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
        # The plan rejects the id of a pause, with the reason.
        if each not in known and not each.startswith(PAUSED_PREFIX):
            raise NoSuchWorker(each)


def _reject_alive(ids: Iterable[str], pools: Sequence[PoolInfo]) -> None:
    alive = {pool.id: pool for pool in pools if pool.health is PoolHealth.ALIVE}
    for each in ids:
        if each in alive:
            raise ConfigurationError(
                f"worker {make_printable(each)} is alive, last heartbeat "
                f"{_format_heartbeat(alive[each])}. Stop it first, or pass --force: then its jobs "
                "may run twice."
            )


def _print_recovered(
    ids: Sequence[str], jobs: Sequence[Job], as_json: bool, *, is_done: bool = True
) -> None:
    if as_json:
        result = {"workers": list(ids), "jobs": [job.id for job in jobs]}
        print_json(result if is_done else {"dry_run": True, **result})
        return
    verb = "recovered" if is_done else "would recover"
    click.echo(f"{verb} {pluralize(len(jobs), 'job')} of {pluralize(len(ids), 'worker')}")


def _build_row(pool: PoolInfo) -> tuple[Any, ...]:
    process = "/".join(str(each) for each in (pool.host, pool.pid) if each is not None)
    return (
        pool.id,
        pool.health,
        _format_heartbeat(pool),
        pool.runtime,
        process,
        pool.version,
        pool.concurrency,
        pool.jobs,
        pool.queues,
    )


def _format_heartbeat(pool: PoolInfo) -> str | None:
    seconds = pool.seconds_since_heartbeat
    return None if seconds is None else f"{format_seconds(seconds)} ago"
