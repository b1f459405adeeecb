"""`graphile-worker workers`: list workers, and recover the jobs of dead ones."""

import click

from graphile_worker._cli.arguments import json_option
from graphile_worker._cli.commands.jobs import (
    change_flags,
    dry_run_option,
    queue_flags,
    yes_option,
)
from graphile_worker._cli.settings.flags import current_queue_settings, reject_flag
from graphile_worker._support.renamed import RENAMED_FLAGS


@click.group()
@queue_flags
def workers() -> None:
    """List workers, and recover the jobs of dead ones."""


@workers.command(name="list")
@json_option
@queue_flags
def list_workers(as_json: bool) -> None:
    """List workers in any language, and their locks."""
    from graphile_worker._cli.worker_output import print_workers

    print_workers(current_queue_settings(), as_json=as_json)


@workers.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all-dead", is_flag=True, help="Recover every worker known to be dead.")
@reject_flag("--dead", RENAMED_FLAGS["--dead"])
@click.option("--force", is_flag=True, help="Also recover jobs of workers that are alive.")
@yes_option
@dry_run_option
@json_option
@change_flags
def recover(
    ids: tuple[str, ...],
    all_dead: bool,
    force: bool,
    is_confirmed: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Release the jobs of dead workers, so that other workers run them."""
    from graphile_worker._cli.worker_output import recover_jobs

    if not ids and not all_dead:
        raise click.UsageError("no workers named. Pass their ids, or --all-dead.")
    recover_jobs(
        current_queue_settings(),
        ids,
        all_dead=all_dead,
        force=force,
        is_confirmed=is_confirmed,
        dry_run=dry_run,
        as_json=as_json,
    )
