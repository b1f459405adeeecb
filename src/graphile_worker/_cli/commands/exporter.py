"""`graphile-worker exporter`: metrics of a queue for Prometheus, without a worker."""

import click

from graphile_worker._cli.settings.flags import current_queue_settings, setting_flags


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    default=9465,
    help="Port to listen on (default: 9465).",
)
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    help="Address to listen on (default: 127.0.0.1).",
)
@setting_flags("connection", "schema", "ext_schema", "log_format")
def exporter(port: int, host: str) -> None:
    """Serve metrics of the queue for Prometheus and KEDA.

    Paths: /metrics, /metrics/queue, /scale, /livez, /readyz. Needs no tasks, and a role that can
    only read the queue is enough.
    """
    # Imported here, as workers do not need it.
    from graphile_worker._cli.exporter import run_exporter

    run_exporter(current_queue_settings(), port=port, host=host)
