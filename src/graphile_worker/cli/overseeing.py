"""Overseeing workers: `workers list` and `workers recover`."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import click

from graphile_worker.administration.finding import patiently, within_limits
from graphile_worker.administration.pools import PAUSED, Health, Pool, dead_pools, getting_holders
from graphile_worker.cli.changing import make_sure
from graphile_worker.cli.printing import count_of, print_json, print_table
from graphile_worker.cli.settings import Settings
from graphile_worker.cli.sources import database_of
from graphile_worker.db.database import BlockingDatabase, perform_blocking
from graphile_worker.durations import about
from graphile_worker.errors import ConfigurationError, GraphileWorkerError
from graphile_worker.jobs import Job
from graphile_worker.logs import printable
from graphile_worker.sql.administering import getting_jobs_of, recovering_jobs_of

HEADS = ("worker", "health", "heard of", "runtime", "where", "version", "slots", "jobs", "queues")


class NoSuchWorker(GraphileWorkerError):
    """No registry knows it, and it holds nothing."""

    def __init__(self, id: str) -> None:
        super().__init__(
            f"there is no worker {printable(id)}: no registry knows it and it holds no jobs. "
            "`graphile-worker workers list` names all"
        )


def print_workers(settings: Settings, *, as_json: bool) -> None:
    """Every worker that is known."""
    with database_of(settings) as database:
        pools = _pools(database)
    if as_json:
        print_json({"workers": pools})
        return
    if not pools:
        click.echo("no workers are known", err=True)
        return
    print_table(HEADS, [_row(pool) for pool in pools], right="slots jobs queues")


def recover_jobs(
    settings: Settings,
    ids: Sequence[str],
    *,
    all_dead: bool,
    by_force: bool,
    is_sure: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Let the jobs of these workers run elsewhere."""
    with database_of(settings) as database:
        schemas = database.schemas
        pools = _pools(database)
        chosen = list(dict.fromkeys([*ids, *(dead_pools(pools) if all_dead else ())]))
        _refuse_unknown(chosen, pools)
        if not by_force:
            _refuse_living(chosen, pools)
        held = perform_blocking(database, within_limits(getting_jobs_of(chosen, schemas), schemas))
        if dry_run:
            _print(chosen, held, as_json, done=False)
            return
        if chosen:
            question = f"recover {count_of(len(held), 'job')} of {count_of(len(chosen), 'worker')}?"
            make_sure(question, "What a living worker still runs may run twice.", is_sure)
        if chosen and not by_force:
            # One may have been heard of again while somebody read the question.
            _refuse_living(chosen, _pools(database))
        plan = recovering_jobs_of(chosen, timedelta(0), schemas)
        recovered = perform_blocking(database, within_limits(plan, schemas))
    _print(chosen, recovered, as_json)


def _pools(database: BlockingDatabase) -> list[Pool]:
    schemas = database.schemas
    return perform_blocking(
        database, getting_holders(schemas, lambda query: patiently(query, schemas))
    )


def _refuse_unknown(ids: Iterable[str], pools: Sequence[Pool]) -> None:
    known = {pool.id for pool in pools}
    for each in ids:
        # A pause of a named queue is released by its holder's name, too.
        if each not in known and not each.startswith(PAUSED):
            raise NoSuchWorker(each)


def _refuse_living(ids: Iterable[str], pools: Sequence[Pool]) -> None:
    alive = {pool.id: pool for pool in pools if pool.health is Health.ALIVE}
    for each in ids:
        if each in alive:
            raise ConfigurationError(
                f"worker {printable(each)} lives, heard of {_heard_of(alive[each])}: stop it "
                "first, or say --force, and what it runs may run twice"
            )


def _print(ids: Sequence[str], jobs: Sequence[Job], as_json: bool, *, done: bool = True) -> None:
    if as_json:
        said = {"workers": list(ids), "jobs": [job.id for job in jobs]}
        print_json(said if done else {"dry_run": True, **said})
        return
    word = "recovered" if done else "would recover"
    click.echo(f"{word} {count_of(len(jobs), 'job')} of {count_of(len(ids), 'worker')}")


def _row(pool: Pool) -> tuple[Any, ...]:
    place = "/".join(str(each) for each in (pool.host, pool.pid) if each is not None)
    return (
        pool.id,
        pool.health,
        _heard_of(pool),
        pool.runtime,
        place,
        pool.version,
        pool.concurrency,
        pool.jobs,
        pool.queues,
    )


def _heard_of(pool: Pool) -> str | None:
    return None if pool.silence is None else f"{about(timedelta(seconds=pool.silence))} ago"
