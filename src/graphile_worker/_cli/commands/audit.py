"""`graphile-worker audit`: list who changed which jobs."""

import click

from graphile_worker._cli.arguments import POSITIVE_INT, json_option
from graphile_worker._cli.settings.flags import current_queue_settings, setting_flags


@click.command()
@click.option("--limit", type=POSITIVE_INT, default=50, help="Number of entries (default: 50).")
@click.option("--before", type=int, metavar="ID", help="Only older entries (default: all).")
@click.option("--actor", metavar="NAME", help="Only of this actor or role (default: all).")
@click.option("--action", metavar="ACTION", help="Only of this action (default: all).")
@click.option("--job", "job_id", type=int, metavar="ID", help="Only about this job (default: all).")
@json_option
@setting_flags("connection", "schema", "ext_schema")
def audit(
    limit: int,
    before: int | None,
    actor: str | None,
    action: str | None,
    job_id: int | None,
    as_json: bool,
) -> None:
    """List who changed which jobs, newest first.

    Example: graphile-worker audit --job 4711
    """
    from graphile_worker._cli.audit_output import print_audit

    print_audit(
        current_queue_settings(),
        actor=actor,
        action=action,
        job_id=job_id,
        before=before,
        limit=limit,
        as_json=as_json,
    )
