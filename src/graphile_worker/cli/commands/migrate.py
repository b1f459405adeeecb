"""`graphile-worker migrate`: install or upgrade the schema, or print the SQL that would."""

import click

from graphile_worker.cli.flags import current_settings, with_flags_of
from graphile_worker.cli.sources import client_of, schema_of
from graphile_worker.db.migrate import migration_sql


@click.command()
@click.option("--sql", is_flag=True, help="Print the SQL for an empty database, change nothing.")
@with_flags_of("connection", "schema", "ext_schema")
def migrate(sql: bool) -> None:
    """Install or upgrade the schema."""
    settings = current_settings()
    schema = schema_of(settings)
    if sql:
        text = migration_sql(schema, settings.value("ext_schema"))
        click.echo(f"begin;\n\n{text}\ncommit;")
        return
    with client_of(settings) as client:
        level = client.migrate()
    click.echo(f"schema {schema} is at level {level}")
