"""`manage.py migrate` in all circumstances, on a database that is empty at first."""

import io
import logging
import os

import django
import pytest
from django.core.management import CommandError, call_command
from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.test import override_settings

from graphile_worker._sql.queries.migrations import EXT_STEPS, LATEST_LEVEL
from graphile_worker.contrib.django import app
from graphile_worker.contrib.django.operations import MigrateQueue

# Without pytest-django: this is not a test of the project, but its commands in one process.
django.setup()

SCHEMA = app.schema
LABEL = "graphile_worker"


def queue(**settings: object) -> override_settings:
    return override_settings(GRAPHILE_WORKER={"SCHEMA": SCHEMA, **settings})


def has_schema(name: str = SCHEMA, alias: str = "default") -> bool:
    with connections[alias].cursor() as cursor:
        cursor.execute("select exists (select from pg_namespace where nspname = %s)", [name])
        return cursor.fetchone()[0]


def migrate(*target: str, database: str = "default") -> str:
    out = io.StringIO()
    call_command("migrate", *target, database=database, stdout=out)
    return out.getvalue()


def test_the_newest_migration_names_the_levels_of_this_release():
    loader = MigrationLoader(None)
    operations = [
        operation
        for key in sorted(key for key in loader.disk_migrations if key[0] == LABEL)
        for operation in loader.disk_migrations[key].operations
        if isinstance(operation, MigrateQueue)
    ]
    newest = operations[-1]
    assert (newest.level, newest.companion_level) == (LATEST_LEVEL, len(EXT_STEPS))
    assert newest.deconstruct()[1:] == (
        [],
        {"level": LATEST_LEVEL, "companion_level": len(EXT_STEPS)},
    )


def test_models_need_no_further_migration():
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


def test_sqlmigrate_prints_the_sql_and_runs_nothing():
    out = io.StringIO()
    call_command("sqlmigrate", LABEL, "0001", stdout=out)
    assert "create table" in out.getvalue().lower()
    assert "add_job" in out.getvalue()
    assert not has_schema()


def test_a_database_that_is_not_postgresql_is_left_alone():
    migrate(LABEL, database="lite")
    with queue(DATABASE="lite"):
        migrate(LABEL, "zero", database="lite")
        migrate(LABEL, database="lite")


def test_a_database_without_a_queue_is_left_alone():
    migrate(LABEL, database="other")
    assert not has_schema(alias="other")


class NoQueue:
    def allow_migrate(self, db: str, app_label: str, **hints: object) -> bool | None:
        return False if hints.get("graphile_worker") else None


@override_settings(DATABASE_ROUTERS=[NoQueue()])
def test_a_router_can_forbid_the_queue():
    assert "Install or upgrade the job queue" in migrate_plan()
    migrate(LABEL)
    assert not has_schema()
    migrate(LABEL, "zero")


def migrate_plan() -> str:
    out = io.StringIO()
    call_command("migrate", LABEL, plan=True, stdout=out)
    return out.getvalue()


def test_a_role_that_may_not_create_gets_a_clear_error():
    with (
        queue(DATABASE="denied"),
        pytest.raises(CommandError, match=r"role '.*' may not install.*permission denied.*owner"),
    ):
        migrate(LABEL, database="denied")


def test_with_migrate_false_the_schema_is_only_checked():
    with queue(MIGRATE=False), pytest.raises(CommandError, match="is not installed"):
        migrate(LABEL)
    assert not has_schema()


def test_zero_keeps_the_jobs_and_warns(caplog: pytest.LogCaptureFixture):
    migrate()
    job = app.add_job("pay", {"order_id": 1})
    with caplog.at_level(logging.WARNING):
        assert "Unapplying" in migrate(LABEL, "zero")
    assert f"kept schema {SCHEMA!r}" in caplog.text
    assert app.status(job.id).state == "ready"
    migrate()
    with queue(MIGRATE=False):
        migrate(LABEL, "zero")
        migrate(LABEL)
    assert app.status(job.id).state == "ready"


def test_a_schema_of_node_is_completed():
    assert has_schema(alias="node")
    assert not has_schema(os.environ["COMPANION"], alias="node")
    with queue(DATABASE="node"):
        migrate(database="node")
        assert has_schema(os.environ["COMPANION"], alias="node")
        assert app.add_job("pay", {"order_id": 1}).id
