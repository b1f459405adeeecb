"""MigrateQueue: the migration operation that installs and upgrades the schema of the queue."""

import logging
from typing import Any

from django.core.management.base import CommandError
from django.db import DatabaseError
from django.db.migrations.operations.base import Operation

from graphile_worker._db.database import run_plan_sync
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.migration import migration_sql, plan_check_schema, plan_migrate
from graphile_worker._sql.sqlstate import INSUFFICIENT_PRIVILEGE, get_sqlstate
from graphile_worker.contrib.django._app import app
from graphile_worker.contrib.django._database import DjangoDatabase
from graphile_worker.contrib.django._queues import has_queue
from graphile_worker.contrib.django._settings import SETTING_NAME, get_settings
from graphile_worker.errors import SchemaError
from graphile_worker.tasks.router import find_retentions

logger = logging.getLogger("graphile_worker")


class MigrateQueue(Operation):
    """Install or upgrade the schema, to the level that this release has.

    The arguments name the levels of the release that added the migration. They are for people: an
    older migration on a newer release does the work of both. Workers and other programs may migrate
    at the same time.

    Args:
        level: Level of the shared schema.
        companion_level: Level of the companion schema.
    """

    reduces_to_sql = True
    reversible = True
    atomic = False
    serialization_expand_args: list[str] = []

    def __init__(self, *, level: int, companion_level: int) -> None:
        self.level = level
        self.companion_level = companion_level

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        """Describe the operation for the writer of migrations."""
        levels = {"level": self.level, "companion_level": self.companion_level}
        return (type(self).__qualname__, [], levels)

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Do nothing: the models are not managed."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        """Migrate the queue, if this is a database that has one."""
        connection = schema_editor.connection
        if not has_queue(connection, app_label):
            return
        queue = get_settings()
        schemas = Schemas.from_names(queue.schema)
        if schema_editor.collect_sql:
            schema_editor.collected_sql.append(migration_sql(queue.schema))
            return
        retentions = find_retentions(app.tasks(), app).values()
        plan = plan_migrate(schemas, retentions) if queue.migrate else plan_check_schema(schemas)
        try:
            run_plan_sync(DjangoDatabase(connection.alias, schemas), plan)
        except SchemaError as error:
            raise CommandError(str(error)) from error
        except DatabaseError as error:
            if get_sqlstate(error) != INSUFFICIENT_PRIVILEGE:
                raise
            raise CommandError(_format_denied(error, connection, schemas)) from error

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        """Keep the queue: other programs may use it."""
        if has_queue(schema_editor.connection, app_label) and not schema_editor.collect_sql:
            logger.warning(
                "kept schema %r and its jobs, which other programs may use: drop it yourself if "
                "you no longer need it",
                get_settings().schema,
            )

    def describe(self) -> str:
        """Describe the operation for `manage.py migrate --plan`."""
        return f"Install or upgrade the job queue in schema {get_settings().schema}"


def _format_denied(error: DatabaseError, connection: Any, schemas: Schemas) -> str:
    role, database = connection.settings_dict["USER"], connection.settings_dict["NAME"]
    return (
        f"role {role!r} may not install or upgrade schema {schemas.shared!r} in database "
        f"{database!r}: {str(error).splitlines()[0]}. Run migrate as the owner of the schema, "
        f"grant the role CREATE on the database, or set {SETTING_NAME}['MIGRATE'] to False if "
        "another program installs the schema."
    )
