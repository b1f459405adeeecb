"""Find out whether `manage.py migrate` has to run, without changing anything."""

from pkgutil import iter_modules

from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections
from django.db.migrations.recorder import MigrationRecorder

from graphile_worker._db.database import run_plan_sync
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.migration import plan_check_schema, plan_find_pending_upgrade
from graphile_worker.contrib.django import migrations
from graphile_worker.contrib.django._database import DjangoDatabase
from graphile_worker.contrib.django._queues import list_aliases
from graphile_worker.contrib.django._settings import SETTING_NAME, get_settings
from graphile_worker.errors import SchemaError, SchemaMissing, SchemaTooNew, SchemaTooOld

APP_LABEL = "graphile_worker"
OWNER_HINT = f"Its owner has to install or upgrade it, because {SETTING_NAME}['MIGRATE'] is False."


def find_schema_problem(alias: str) -> tuple[str, str | None] | None:
    """Return what is wrong with the schema of the queue and what to do, or None.

    Args:
        alias: Key of `DATABASES`.

    Returns:
        The problem, and a hint if the problem does not contain one.
    """
    settings = get_settings()
    schemas = Schemas.from_names(settings.schema)
    database = DjangoDatabase(alias, schemas)
    try:
        if not settings.migrate:
            run_plan_sync(database, plan_check_schema(schemas))
            return None
        pending = run_plan_sync(database, plan_find_pending_upgrade(schemas))
    except SchemaMissing:
        where = f"database {alias!r}"
        return f"schema {schemas.shared!r} is not installed in {where}", _build_hint(alias)
    except (SchemaTooNew, SchemaTooOld) as error:
        return str(error), None
    except SchemaError as error:
        return str(error), _build_hint(alias)
    return None if pending is None else (pending, _build_hint(alias))


def _build_hint(alias: str) -> str:
    if not get_settings().migrate:
        return OWNER_HINT
    if alias not in list_aliases():
        return f"Name {alias!r} in {SETTING_NAME}['DATABASE'] or in OPTIONS of TASKS, then migrate."
    database = "" if alias == DEFAULT_DB_ALIAS else f" --database {alias}"
    if _is_recorded(alias):
        # Django has run it before the settings named this database or this schema.
        return f"Run `python manage.py graphile_worker{database} migrate`."
    return f"Run `python manage.py migrate{database}`."


def _is_recorded(alias: str) -> bool:
    """Return whether Django has recorded the newest migration of this app as applied."""
    newest = max(each.name for each in iter_modules(migrations.__path__))
    try:
        applied = MigrationRecorder(connections[alias]).applied_migrations()
    except DatabaseError:
        # The role may not read Django's table.
        return False
    return (APP_LABEL, newest) in applied
