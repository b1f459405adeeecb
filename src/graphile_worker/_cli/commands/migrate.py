"""`graphile-worker migrate`: install or upgrade the schema, or print the SQL that would."""

import click

from graphile_worker._cli.settings.flags import current_queue_settings, setting_flags
from graphile_worker._cli.settings.resolve import open_shards, resolve_schema
from graphile_worker._sql.plans.migration import migration_sql


@click.command()
@click.option("--sql", is_flag=True, help="Print the SQL for an empty database, and run nothing.")
@setting_flags("connection", "shards", "schema", "ext_schema")
def migrate(sql: bool) -> None:
    """Install or upgrade the schema."""
    settings = current_queue_settings()
    schema = resolve_schema(settings)
    if sql:
        text = migration_sql(schema, settings.value("ext_schema"))
        click.echo(f"begin;\n\n{text}\ncommit;")
        return
    with open_shards(settings) as client:
        level = client.migrate()
    click.echo(f"schema {schema} is at level {level}")
