"""Commands that change jobs: preview, confirmation, progress and result."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import click

from graphile_worker._cli.job_output import HIDDEN_ROWS_MESSAGE, NoSuchJob, print_jobs
from graphile_worker._cli.printing import print_json
from graphile_worker._cli.settings.layers import Settings
from graphile_worker._cli.settings.resolve import open_database, resolve_actor
from graphile_worker._db.database import SyncDatabase, run_plan_sync
from graphile_worker._sql.plans.admin import plan_remove_running_job
from graphile_worker._sql.queries.audit import AuditAction
from graphile_worker._support.text import pluralize
from graphile_worker.errors import GraphileWorkerError
from graphile_worker.jobs import check_text
from graphile_worker.ops.bulk import (
    BATCH_SIZE,
    DEFAULT_THROTTLE,
    BulkAction,
    BulkPreview,
    BulkResult,
    CompleteAction,
    plan_bulk_change,
    plan_bulk_preview,
)
from graphile_worker.ops.filters import Filter, filter_by_ids, filter_by_keys
from graphile_worker.ops.search import limit_plan, plan_list_jobs

# 128 plus the number of SIGINT, as shells report it.
INTERRUPTED_EXIT_CODE = 130


class ConfirmationRequired(GraphileWorkerError):
    """Raised when the user declines, or standard input is not a terminal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangeOptions:
    """The options of a command that changes jobs, and the verb of its messages."""

    verb: str
    past_tense: str
    requires_confirmation: bool = False
    warning: str = ""
    is_confirmed: bool = False
    limit: int | None = None
    dry_run: bool = False
    as_json: bool = False
    throttle: float | None = None
    # The caller also changes locked jobs, so the question counts them.
    includes_locked: bool = False
    ids: tuple[int, ...] = ()
    # The caller prints the result.
    is_quiet: bool = False
    # The name of the command in the audit, if it is not that of the action.
    audit_action: AuditAction | None = None


def change_jobs(
    settings: Settings, action: BulkAction, job_filter: Filter, options: ChangeOptions
) -> BulkResult | None:
    """Change the jobs that match. A dry run changes none and returns None."""
    with open_database(settings) as database:
        plan = plan_bulk_preview(action, job_filter, database.schemas, limit=options.limit)
        preview = run_plan_sync(database, plan)
        if preview.count.total < len(set(options.ids)):
            _report_missing(database, options.ids)
        if options.dry_run:
            _print_preview(preview, options)
            return None
        affected = preview.total + (preview.locked_count if options.includes_locked else 0)
        if affected and options.requires_confirmation:
            question = f"{options.verb} {pluralize(affected, 'job')}?"
            confirm(question, options.warning, options.is_confirmed)
        result = _apply(database, preview, options, resolve_actor(settings))
    if not options.is_quiet:
        _print_result(preview, result, options)
    return result


def _report_missing(database: SyncDatabase, ids: Sequence[int]) -> None:
    """Print the ids of missing jobs, or raise NoSuchJob if all are missing."""
    plan = plan_list_jobs(filter_by_ids(ids), database.schemas, limit=len(ids))
    page = run_plan_sync(database, plan)
    if page.has_hidden_rows:
        click.echo(f"graphile-worker: {HIDDEN_ROWS_MESSAGE}", err=True)
        return
    existing = {job.id for job in page.jobs}
    missing = [job_id for job_id in dict.fromkeys(ids) if job_id not in existing]
    if not existing:
        raise NoSuchJob(*missing)
    if missing:
        click.echo(f"graphile-worker: {NoSuchJob(*missing)}", err=True)


def confirm(question: str, warning: str, is_confirmed: bool) -> None:
    """Ask for confirmation unless `--yes` was passed, and raise if the user declines."""
    if is_confirmed:
        return
    if not sys.stdin.isatty():
        raise ConfirmationRequired(f"{question} Standard input is not a terminal. Add --yes.")
    if warning:
        click.echo(warning, err=True)
    if not click.confirm(question[0].upper() + question[1:], err=True):
        raise ConfirmationRequired("nothing was changed")


def _apply(
    database: SyncDatabase, preview: BulkPreview, options: ChangeOptions, actor: str | None
) -> BulkResult:
    progress = BulkResult()
    throttle = DEFAULT_THROTTLE if options.throttle is None else options.throttle
    with _show_progress(preview.total) as show:

        def on_progress(result: BulkResult) -> None:
            nonlocal progress
            progress = result
            show(result)

        plan = plan_bulk_change(
            preview,
            database.schemas,
            on_progress=on_progress,
            throttle=throttle,
            actor=actor,
            audit_action=options.audit_action,
        )
        try:
            return run_plan_sync(database, plan)
        except KeyboardInterrupt:
            click.echo(f"\ninterrupted: {_format_result(progress, options)}", err=True)
            click.get_current_context().exit(INTERRUPTED_EXIT_CODE)
        except Exception:
            if progress != BulkResult():
                click.echo(f"\nbefore the error: {_format_result(progress, options)}", err=True)
            raise


@contextmanager
def _show_progress(total: int) -> Iterator[Callable[[BulkResult], None]]:
    """Show a progress bar on a terminal."""
    if not sys.stderr.isatty() or total <= BATCH_SIZE:
        yield lambda result: None
        return
    with click.progressbar(length=total, file=sys.stderr, show_pos=True, show_eta=True) as bar:
        yield lambda result: bar.update(result.changed + result.gone - bar.pos)


def _print_result(preview: BulkPreview, result: BulkResult, options: ChangeOptions) -> None:
    if options.as_json:
        print_json({"action": options.verb, "total": preview.total, **_build_counts(result)})
        return
    if result == BulkResult() and preview.count.total:
        click.echo(f"nothing to {options.verb}: {_format_by_state(preview)}")
        return
    click.echo(_format_result(result, options))


def _format_result(result: BulkResult, options: ChangeOptions) -> str:
    parts = [f"{options.past_tense} {pluralize(result.changed, 'job')}"]
    if result.skipped_locked:
        parts.append(f"skipped {result.skipped_locked:,} that a worker holds")
    if result.gone:
        parts.append(f"{result.gone:,} no longer matched")
    return "; ".join(parts)


def _build_counts(result: BulkResult) -> dict[str, int]:
    return {
        "done": result.changed,
        "skipped_locked": result.skipped_locked,
        "gone": result.gone,
    }


def _print_preview(preview: BulkPreview, options: ChangeOptions) -> None:
    stopped = preview.locked_count if options.includes_locked else 0
    if options.as_json:
        print_json(
            {
                "action": options.verb,
                "dry_run": True,
                "total": preview.total,
                "held": preview.locked_count,
                **({"stopped": stopped} if options.includes_locked else {}),
                "by_state": preview.count.by_state,
                "sample": preview.sample,
            }
        )
        return
    states = f" (found: {_format_by_state(preview)})" if preview.count.total else ""
    click.echo(f"would {options.verb} {pluralize(preview.total, 'job')}{states}")
    if stopped:
        click.echo(f"{pluralize(stopped, 'running job')} would finish and not run again")
    if preview.sample and preview.now is not None:
        print_jobs(preview.sample, preview.now)


def _format_by_state(preview: BulkPreview) -> str:
    return ", ".join(f"{count:,} {state}" for state, count in preview.count.by_state.items())


def remove_by_key(
    settings: Settings,
    keys: Sequence[str],
    *,
    include_running: bool,
    is_confirmed: bool,
    dry_run: bool,
    as_json: bool,
) -> bool:
    """Delete the jobs with these keys, and return whether each key had a job to delete."""
    options = ChangeOptions(
        verb="delete",
        past_tense="deleted",
        requires_confirmation=True,
        is_confirmed=is_confirmed,
        dry_run=dry_run,
        as_json=as_json,
        includes_locked=include_running,
        is_quiet=as_json and include_running,
        audit_action=AuditAction.JOBS_REMOVE,
    )
    keys = [check_text("job_key", key) for key in dict.fromkeys(keys)]
    result = change_jobs(settings, CompleteAction(), filter_by_keys(keys), options)
    if result is None:
        return True
    stopped = _remove_running(settings, keys) if include_running else 0
    if include_running and as_json:
        print_json({"action": options.verb, **_build_counts(result), "stopped": stopped})
    elif stopped:
        click.echo(f"{pluralize(stopped, 'running job')} will finish and not run again")
    return result.changed + stopped == len(keys)


def _remove_running(settings: Settings, keys: Sequence[str]) -> int:
    actor = resolve_actor(settings)
    with open_database(settings) as database:
        schemas = database.schemas
        plans = (
            limit_plan(plan_remove_running_job(key, schemas, actor=actor), schemas) for key in keys
        )
        return sum(run_plan_sync(database, plan) is not None for plan in plans)
