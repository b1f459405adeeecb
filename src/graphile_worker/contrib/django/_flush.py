"""Install the queue in test databases, and clear it where Django flushes them between tests."""

from typing import TYPE_CHECKING, Any

from django.apps import AppConfig
from django.db import connections
from django.db.models.signals import post_migrate, pre_migrate

from graphile_worker.contrib.django._settings import get_settings

if TYPE_CHECKING:
    from graphile_worker.contrib.django._database import DjangoDatabase


def install(config: AppConfig) -> None:
    """Register the receivers. They do nothing outside of a test environment."""
    pre_migrate.connect(_install_queue, sender=config, dispatch_uid="graphile_worker.install")
    post_migrate.connect(_clear_queue, sender=config, dispatch_uid="graphile_worker.clear")


def _install_queue(*, app_config: AppConfig, using: str, **_: object) -> None:
    """Install the queue in a test database where the migration of this app does not.

    That is so if a project runs its tests without migrations, and if MIGRATE is False because
    another program owns the schema: that program does not know the test database.
    """
    from django.db.migrations.loader import MigrationLoader

    from graphile_worker._db.database import run_plan_sync
    from graphile_worker.testing.setup import plan_prepare_schema

    if not _is_test_queue(app_config, using):
        return
    module, _explicit = MigrationLoader.migrations_module(app_config.label)
    if module is None or not get_settings().migrate:
        database = _open(using)
        run_plan_sync(database, plan_prepare_schema(database.schemas))


def _clear_queue(*, app_config: AppConfig, using: str, **options: Any) -> None:
    """Delete the jobs that a TransactionTestCase has committed.

    After such a test Django empties the tables of its models and sends post_migrate, without a
    plan. It sends nothing if the class sets serialized_rollback, or available_apps without this
    app. `JobsMixin` and the fixture gw clear the queue there too.
    """
    from graphile_worker._db.database import run_plan_sync
    from graphile_worker._sql.queries.testing import inspect_queue
    from graphile_worker.testing.setup import plan_clear_queue

    if "plan" in options or not _is_test_queue(app_config, using):
        return
    database = _open(using)
    # A project may run its tests on a database that has no queue.
    if "_private_jobs" in database.run(inspect_queue(database.schemas)).relations:
        run_plan_sync(database, plan_clear_queue(database.schemas))


def _is_test_queue(config: AppConfig, alias: str) -> bool:
    # The modules are imported here, because every command of manage.py imports this one.
    from graphile_worker.contrib.django._queues import has_queue
    from graphile_worker.testing.setup import get_django_test_environment

    return get_django_test_environment() is not None and has_queue(connections[alias], config.label)


def _open(alias: str) -> "DjangoDatabase":
    from graphile_worker._sql.identifiers import Schemas
    from graphile_worker.contrib.django._database import DjangoDatabase

    return DjangoDatabase(alias, Schemas.from_names(get_settings().schema))
