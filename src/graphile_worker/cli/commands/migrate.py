"""`graphile-worker migrate`: install or upgrade the schema, or print the SQL that would."""

import click

from graphile_worker.cli.settings import current_settings, database_options
from graphile_worker.db.migrate import migration_sql
from graphile_worker.sync import Client


@click.command()
@click.option("--sql", is_flag=True, help="Print the SQL for an empty database, change nothing.")
@database_options
def migrate(sql: bool) -> None:
    """Install or upgrade the schema."""
    settings = current_settings()
    if sql:
        click.echo(f"begin;\n\n{migration_sql(settings.schema)}\ncommit;")
        return
    with Client(settings.connection, schema=settings.schema) as client:
        level = client.migrate()
    click.echo(f"schema {settings.schema} is at level {level}")
