"""`graphile-worker shards`: show the jobs of all shards."""

import click

from graphile_worker._cli.arguments import json_option
from graphile_worker._cli.commands.jobs import queue_flags
from graphile_worker._cli.printing import print_json, print_table
from graphile_worker._cli.settings.flags import current_queue_settings, setting_flags
from graphile_worker._cli.settings.resolve import open_shards
from graphile_worker._shards import ShardStatus
from graphile_worker.errors import ConfigurationError
from graphile_worker.sync import Shards

HEADERS = ("shard", "state", "jobs", "elsewhere")


@click.group()
@queue_flags
def shards() -> None:
    """Show the jobs of all shards."""


@shards.command()
@json_option
@setting_flags("shards", "new_shards", "draining_shards", "connection", "schema", "ext_schema")
def status(as_json: bool) -> None:
    """Count the jobs of each shard, and those that belong elsewhere.

    A job belongs elsewhere if its key or queue routes to another shard, and on a draining shard.
    """
    with open_shards(current_queue_settings()) as client:
        if not isinstance(client, Shards):
            raise ConfigurationError("no shards configured. Set shards, or an app that has some.")
        found = client.read_status()
    if as_json:
        print_json({"shards": found})
        return
    rows = [(each.name, _get_state(each), each.total, each.misplaced) for each in found]
    print_table(HEADERS, rows, right_aligned="jobs elsewhere")


def _get_state(shard: ShardStatus) -> str:
    return "draining" if shard.is_draining else "new" if shard.is_new else "active"
