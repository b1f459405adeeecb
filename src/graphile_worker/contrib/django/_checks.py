"""System checks of `manage.py check`. Those that use the database need `--database`."""

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections

from graphile_worker.contrib.django._queues import has_queue, list_aliases, list_backend_aliases
from graphile_worker.contrib.django._settings import (
    SETTING_NAME,
    QueueSettings,
    find_problems,
    get_settings,
)

APP_NAME = "graphile_worker.contrib.django"
APP_LABEL = "graphile_worker"
DEFAULT_CONCURRENCY = 1
# Of psycopg_pool.
DEFAULT_POOL_SIZE = 4


def register_checks() -> None:
    """Register all checks, when the app is ready."""
    register(check_configuration)
    register(check_schema, Tags.database)


def check_installed() -> list[CheckMessage]:
    """Check that the app is installed, for the backend of `django.tasks`."""
    if apps.is_installed(APP_NAME):
        return []
    return [
        _error(
            "E001",
            f"TASKS names a backend of {APP_NAME}, which is not in INSTALLED_APPS.",
            f"Add {APP_NAME!r} to INSTALLED_APPS.",
        )
    ]


def check_configuration(**_: Any) -> list[CheckMessage]:
    """Check the settings, without a connection."""
    if problems := find_problems():
        return [_error("E003", problem) for problem in problems]
    queue = get_settings()
    return [
        *_check_aliases(queue),
        *_check_drivers(),
        *_check_pool(queue),
        *_check_logging(),
    ]


def check_schema(*, databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Check the schema and the role of each database that has a queue."""
    if _is_migrating() or find_problems():
        return []
    messages: list[CheckMessage] = []
    for alias in databases or ():
        if alias in list_aliases() and has_queue(connections[alias], APP_LABEL):
            messages += _check_database(alias)
    return messages


def _is_migrating() -> bool:
    """Return whether this is the command that installs the schema, or the schema is not Django's.

    `migrate` runs these checks first, and an error would keep it from fixing the schema.
    """
    if "migrate" in "".join(sys.argv[1:2]):
        return True
    modules = getattr(settings, "MIGRATION_MODULES", {})
    return APP_LABEL in modules and modules[APP_LABEL] is None


def _check_database(alias: str) -> Iterator[CheckMessage]:
    # Imported here, because every process of Django imports this module.
    from graphile_worker._sql.identifiers import Schemas
    from graphile_worker._sql.queries.diagnostics import inspect_access
    from graphile_worker.contrib.django._database import DjangoDatabase
    from graphile_worker.contrib.django._schema_check import find_schema_problem

    try:
        problem = find_schema_problem(alias)
    except DatabaseError as error:
        text = str(error).splitlines()[0]
        yield _error("E010", f"The queue in database {alias!r} cannot be read: {text}")
        return
    if problem is not None:
        text, hint = problem
        yield _error("E010", f"{text[:1].upper()}{text[1:]}.", hint)
        return
    schemas = Schemas.from_names(get_settings().schema)
    access = DjangoDatabase(alias, schemas).run(inspect_access(schemas))
    hidden = [each.name for each in access if each.has_hidden_rows and not each.is_companion]
    if hidden:
        role = connections[alias].settings_dict["USER"]
        yield _warning(
            "W011",
            f"Row level security hides all rows of {', '.join(hidden)} from role {role!r}: it "
            "sees an empty queue and cannot add jobs.",
            "Use the role that owns the tables, set assume_role in OPTIONS, or create a policy.",
        )


def _check_aliases(queue: QueueSettings) -> Iterator[CheckMessage]:
    named = [
        (f"{SETTING_NAME}['DATABASE']", queue.database),
        (f"{SETTING_NAME}['WORKER_DATABASE']", queue.worker_database),
        *(("OPTIONS['DATABASE'] of TASKS", alias) for alias in list_backend_aliases()),
    ]
    for where, alias in named:
        if alias is None:
            continue
        if alias not in connections.settings:
            known = ", ".join(connections.settings)
            yield _error(
                "E002",
                f"{where} names {alias!r}, which is not in DATABASES.",
                f"Choose one of: {known}.",
            )
        elif _find_vendor(alias) != "postgresql":
            yield _error(
                "E002",
                f"{where} names {alias!r}, which is not a PostgreSQL database.",
                "Graphile Worker needs PostgreSQL 14 or newer.",
            )


def _check_drivers() -> Iterator[CheckMessage]:
    if find_spec("psycopg2") is not None:
        yield _warning(
            "W001",
            "psycopg2 is installed, and Django uses psycopg 3, which this package installs.",
            "Uninstall psycopg2, or silence this check if other programs need it.",
        )


def _check_pool(queue: QueueSettings) -> Iterator[CheckMessage]:
    concurrency = queue.worker.get("concurrency", DEFAULT_CONCURRENCY)
    for alias in sorted(list_aliases()):
        if alias not in connections.settings:
            continue
        pool = connections.settings[alias].get("OPTIONS", {}).get("pool")
        if not pool:
            continue
        size = _find_pool_size(pool if isinstance(pool, Mapping) else {})
        if size is not None and size < concurrency:
            yield _warning(
                "W002",
                f"The pool of database {alias!r} has {size} connections, and a worker runs "
                f"{concurrency} jobs at once.",
                f"Set max_size in OPTIONS['pool'] to {concurrency} or more.",
            )


def _find_pool_size(pool: Mapping[str, Any]) -> int | None:
    """Return the largest size of a pool, as psycopg_pool computes it."""
    size = pool.get("max_size") or pool.get("min_size", DEFAULT_POOL_SIZE)
    return size if isinstance(size, int) else None


def _check_logging() -> Iterator[CheckMessage]:
    if logging.getLogger("graphile_worker").disabled:
        yield _warning(
            "W004",
            "LOGGING disables the logger 'graphile_worker', because the settings import the "
            "package before LOGGING applies.",
            "Add 'disable_existing_loggers': False to LOGGING.",
        )


def _find_vendor(alias: str) -> str | None:
    try:
        vendor: str = connections[alias].vendor
    except ImproperlyConfigured:
        # The engine cannot be imported. Django reports it.
        return None
    return vendor


def _error(number: str, text: str, hint: str | None = None) -> CheckMessage:
    return Error(text, hint=hint, id=f"{APP_LABEL}.{number}")


def _warning(number: str, text: str, hint: str | None = None) -> CheckMessage:
    return Warning(text, hint=hint, id=f"{APP_LABEL}.{number}")
