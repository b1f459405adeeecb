"""`graphile-worker workers`: which there are, and the jobs of dead ones."""

import click

from graphile_worker.cli.commands.jobs import dry_run_option, json_option, on_queue, yes_option
from graphile_worker.cli.flags import current_settings


@click.group()
@on_queue
def workers() -> None:
    """Which workers there are, and the jobs of dead ones."""


@workers.command(name="list")
@json_option
@on_queue
def list_them(as_json: bool) -> None:
    """List the workers that are known, in any language, and what they hold."""
    from graphile_worker.cli.overseeing import print_workers

    print_workers(current_settings(), as_json=as_json)


@workers.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--dead", is_flag=True, help="All of which a registry says that they are dead.")
@click.option("--force", is_flag=True, help="Also those that live.")
@yes_option
@dry_run_option
@json_option
@on_queue
def recover(
    ids: tuple[str, ...], dead: bool, force: bool, is_sure: bool, dry_run: bool, as_json: bool
) -> None:
    """Let the jobs of workers that died run elsewhere."""
    from graphile_worker.cli.overseeing import recover_jobs

    if not ids and not dead:
        raise click.UsageError("say which workers: their ids, or --dead")
    recover_jobs(
        current_settings(),
        ids,
        all_dead=dead,
        by_force=force,
        is_sure=is_sure,
        dry_run=dry_run,
        as_json=as_json,
    )
