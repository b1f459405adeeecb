"""`graphile-worker pause` and `resume`: stop tasks and named queues for a while."""

from typing import TYPE_CHECKING

import click

from graphile_worker._cli.arguments import DURATION, POSITIVE_DURATION, json_option
from graphile_worker._cli.commands.jobs import change_flags, queue_flags
from graphile_worker._cli.settings.flags import current_queue_settings

if TYPE_CHECKING:
    from datetime import timedelta

for_option = click.option(
    "--for",
    "duration",
    type=POSITIVE_DURATION,
    metavar="DURATION",
    help="Length of the pause (default: until resumed).",
)
reason_option = click.option(
    "--reason", metavar="TEXT", help="Reason that others see (default: none)."
)
wait_option = click.option(
    "--wait",
    type=DURATION,
    metavar="DURATION",
    default="5s",
    help="Longest wait for a running job (default: 5s).",
)


@click.group()
@queue_flags
def pause() -> None:
    """Pause tasks and named queues, and list what is paused."""


@pause.command(name="task")
@click.argument("name")
@for_option
@reason_option
@json_option
@change_flags
def pause_task(name: str, duration: "timedelta | None", reason: str | None, as_json: bool) -> None:
    """Start no more jobs of a task in Python workers.

    Example: graphile-worker pause task send_email --for 10m --reason "bounces"
    """
    from graphile_worker._cli.pause_output import pause_task

    pause_task(current_queue_settings(), name, duration=duration, reason=reason, as_json=as_json)


@pause.command(name="queue")
@click.argument("name")
@for_option
@reason_option
@wait_option
@json_option
@change_flags
def pause_queue(
    name: str,
    duration: "timedelta | None",
    reason: str | None,
    wait: "timedelta",
    as_json: bool,
) -> None:
    """Start no more jobs of a named queue, in any language.

    Example: graphile-worker pause queue tenant-7 --reason "import is broken"
    """
    from graphile_worker._cli.pause_output import pause_queue

    pause_queue(
        current_queue_settings(),
        name,
        duration=duration,
        reason=reason,
        wait=wait,
        as_json=as_json,
    )


@pause.command(name="list")
@json_option
@queue_flags
def list_pauses(as_json: bool) -> None:
    """List paused tasks and named queues."""
    from graphile_worker._cli.pause_output import print_pauses

    print_pauses(current_queue_settings(), as_json=as_json)


@click.group()
@queue_flags
def resume() -> None:
    """Resume paused tasks and named queues."""


@resume.command(name="task")
@click.argument("name")
@json_option
@change_flags
def resume_task(name: str, as_json: bool) -> None:
    """Start jobs of a task again."""
    from graphile_worker._cli.pause_output import resume_task

    resume_task(current_queue_settings(), name, as_json=as_json)


@resume.command(name="queue")
@click.argument("name")
@wait_option
@json_option
@change_flags
def resume_queue(name: str, wait: "timedelta", as_json: bool) -> None:
    """Start jobs of a named queue again."""
    from graphile_worker._cli.pause_output import resume_queue

    resume_queue(current_queue_settings(), name, wait=wait, as_json=as_json)
