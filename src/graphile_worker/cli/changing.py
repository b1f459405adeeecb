"""Changing jobs: looked at first, asked about if there is no way back, counted while it goes."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click

from graphile_worker.administration.bulk import (
    BATCH,
    Action,
    Complete,
    Outcome,
    Preview,
    changing,
    previewing,
)
from graphile_worker.administration.filters import Filter, with_ids, with_keys
from graphile_worker.administration.finding import listing, within_limits
from graphile_worker.cli.looking import HIDDEN, NoSuchJob, print_jobs
from graphile_worker.cli.printing import count_of, print_json
from graphile_worker.cli.settings import Settings
from graphile_worker.cli.sources import database_of
from graphile_worker.db.database import BlockingDatabase, perform_blocking
from graphile_worker.errors import GraphileWorkerError
from graphile_worker.jobs import check_text
from graphile_worker.sql.administering import removing_job

# As shells have it: 128 and the number of the signal.
INTERRUPTED = 130


class NotAsked(GraphileWorkerError):
    """Nobody is there to be asked, or somebody said no."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """How a change is made: which word is said of it, and what was asked for."""

    verb: str
    done: str
    must_be_sure: bool = False
    warning: str = ""
    is_sure: bool = False
    limit: int | None = None
    dry_run: bool = False
    as_json: bool = False
    rest: float | None = None
    # Those that a worker holds are meant as well, and somebody else says what came of it.
    also_held: bool = False
    # Those that were named by their ids.
    ids: tuple[int, ...] = ()
    is_quiet: bool = False


def change(settings: Settings, action: Action, wanted: Filter, way: Way) -> Outcome | None:
    """Do it to all that are meant; what came of it, or None if it was not to be done."""
    with database_of(settings) as database:
        plan = previewing(action, wanted, database.schemas, limit=way.limit)
        preview = perform_blocking(database, plan)
        if preview.count.total < len(set(way.ids)):
            _name_missing(database, way.ids)
        if way.dry_run:
            _print_preview(preview, way)
            return None
        at_stake = preview.total + (preview.held if way.also_held else 0)
        if at_stake and way.must_be_sure:
            make_sure(f"{way.verb} {count_of(at_stake, 'job')}?", way.warning, way.is_sure)
        outcome = _done(database, preview, way)
    if not way.is_quiet:
        _print_outcome(preview, outcome, way)
    return outcome


def _name_missing(database: BlockingDatabase, ids: Sequence[int]) -> None:
    """Say which jobs are not there; raises if none of them is."""
    plan = listing(with_ids(ids), database.schemas, limit=len(ids))
    page = perform_blocking(database, plan)
    if page.hides_rows:
        click.echo(f"graphile-worker: {HIDDEN}", err=True)
        return
    found = {job.id for job in page.jobs}
    missing = [each for each in dict.fromkeys(ids) if each not in found]
    if not found:
        raise NoSuchJob(*missing)
    if missing:
        click.echo(f"graphile-worker: {NoSuchJob(*missing)}", err=True)


def make_sure(question: str, warning: str, is_sure: bool) -> None:
    """Ask whoever sits there, unless they said so before; raises if that was not a yes."""
    if is_sure:
        return
    if not sys.stdin.isatty():
        raise NotAsked(f"{question} Nobody is there to be asked: say --yes")
    if warning:
        click.echo(warning, err=True)
    if not click.confirm(question[0].upper() + question[1:], err=True):
        raise NotAsked("nothing was changed")


def _done(database: BlockingDatabase, preview: Preview, way: Way) -> Outcome:
    so_far = Outcome()
    more: dict[str, Any] = {} if way.rest is None else {"rest": way.rest}
    with _progress(preview.total) as show:

        def note(outcome: Outcome) -> None:
            nonlocal so_far
            so_far = outcome
            show(outcome)

        plan = changing(preview, database.schemas, on_progress=note, **more)
        try:
            return perform_blocking(database, plan)
        except KeyboardInterrupt:
            click.echo(f"\ninterrupted: {_words(so_far, way)}", err=True)
            click.get_current_context().exit(INTERRUPTED)
        except Exception:
            if so_far != Outcome():
                click.echo(f"\nuntil then: {_words(so_far, way)}", err=True)
            raise


@contextmanager
def _progress(total: int) -> Iterator[Callable[[Outcome], None]]:
    """A bar for those who wait at a terminal."""
    if not sys.stderr.isatty() or total <= BATCH:
        yield lambda outcome: None
        return
    with click.progressbar(length=total, file=sys.stderr, show_pos=True, show_eta=True) as bar:
        yield lambda outcome: bar.update(outcome.done + outcome.gone - bar.pos)


def _print_outcome(preview: Preview, outcome: Outcome, way: Way) -> None:
    if way.as_json:
        print_json({"action": way.verb, "total": preview.total, **_numbers(outcome)})
        return
    if outcome == Outcome() and preview.count.total:
        click.echo(f"nothing to {way.verb}: {_by_state(preview)}")
        return
    click.echo(_words(outcome, way))


def _words(outcome: Outcome, way: Way) -> str:
    said = [f"{way.done} {count_of(outcome.done, 'job')}"]
    if outcome.skipped_locked:
        said.append(f"left {outcome.skipped_locked:,} alone that a worker holds")
    if outcome.gone:
        said.append(f"{outcome.gone:,} were gone or changed meanwhile")
    return "; ".join(said)


def _numbers(outcome: Outcome) -> dict[str, int]:
    return {
        "done": outcome.done,
        "skipped_locked": outcome.skipped_locked,
        "gone": outcome.gone,
    }


def _print_preview(preview: Preview, way: Way) -> None:
    if way.as_json:
        print_json(
            {
                "action": way.verb,
                "dry_run": True,
                "total": preview.total,
                "held": preview.held,
                "by_state": preview.count.by_state,
                "sample": preview.sample,
            }
        )
        return
    found = f" (found: {_by_state(preview)})" if preview.count.total else ""
    click.echo(f"would {way.verb} {count_of(preview.total, 'job')}{found}")
    if preview.sample and preview.now is not None:
        print_jobs(preview.sample, preview.now)


def _by_state(preview: Preview) -> str:
    return ", ".join(f"{count:,} {state}" for state, count in preview.count.by_state.items())


def remove_by_key(
    settings: Settings,
    keys: Sequence[str],
    *,
    also_running: bool,
    is_sure: bool,
    dry_run: bool,
    as_json: bool,
) -> bool:
    """Delete the jobs with these keys; whether all of them are gone.

    Those that run are let finish and get no other attempt, if that was asked for.
    """
    way = Way(
        verb="delete",
        done="deleted",
        must_be_sure=True,
        is_sure=is_sure,
        dry_run=dry_run,
        as_json=as_json,
        also_held=also_running,
        is_quiet=as_json and also_running,
    )
    keys = [check_text("job_key", key) for key in dict.fromkeys(keys)]
    outcome = change(settings, Complete(), with_keys(keys), way)
    if outcome is None:
        return True
    stopped = _stop_running(settings, keys) if also_running else 0
    if also_running and as_json:
        print_json({"action": way.verb, **_numbers(outcome), "stopped": stopped})
    elif stopped:
        click.echo(f"{count_of(stopped, 'job')} may finish, and will not run again")
    return outcome.done + stopped == len(set(keys))


def _stop_running(settings: Settings, keys: Sequence[str]) -> int:
    with database_of(settings) as database:
        schemas = database.schemas
        plans = (within_limits(removing_job(key, schemas), schemas) for key in dict.fromkeys(keys))
        return sum(perform_blocking(database, plan) is not None for plan in plans)
