"""Load what the settings name: the tasks, the crontab and the database."""

import getpass
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from graphile_worker._cli.settings.layers import Settings, SettingSource
from graphile_worker._db.database import SyncDatabase
from graphile_worker._db.external_pools import open_sync_database
from graphile_worker._settings.values import parse_shards
from graphile_worker._shards import BaseShards
from graphile_worker._sql.identifiers import Schemas
from graphile_worker.options import default_schema
from graphile_worker.sync import Client, Shards
from graphile_worker.tasks import TaskRouter

DEFAULT_TASKS_FOLDER = Path("tasks")
DEFAULT_CRONTAB = Path("crontab")


def resolve_crontab(settings: Settings) -> Path | None:
    """Return the crontab of the settings, or else ./crontab if it exists."""
    path: Path | None = settings.value("crontab")
    return path or (DEFAULT_CRONTAB if DEFAULT_CRONTAB.is_file() else None)


def resolve_tasks_folder(settings: Settings) -> Path | None:
    """Return the folder of the settings, or else ./tasks if it exists, or None beside an app."""
    if settings.value("app") is not None:
        return None
    path: Path | None = settings.value("tasks")
    return path or (DEFAULT_TASKS_FOLDER if DEFAULT_TASKS_FOLDER.is_dir() else None)


def resolve_app(settings: Settings) -> TaskRouter[Any] | None:
    if (path := settings.value("app")) is None:
        return None
    # Imports the parser of crontabs, which commands without an app do not need.
    from graphile_worker._discovery.discovery import load_app

    return load_app(path)


def resolve_external_tasks(settings: Settings) -> frozenset[str]:
    """Return the names of the tasks of the app that other programs run."""
    app = resolve_app(settings)
    return frozenset() if app is None else frozenset(app.external_tasks())


def resolve_task_source(settings: Settings) -> TaskRouter[Any] | Path | None:
    """Return the app, or else the folder, whose files can then import what they need."""
    if (app := resolve_app(settings)) is not None:
        return app
    if (folder := resolve_tasks_folder(settings)) is None:
        return None
    # A task can import modules beside its folder and in the current directory.
    for path in (folder.absolute().parent, Path.cwd()):
        if str(path) not in sys.path:
            sys.path.insert(0, str(path))
    return folder


def resolve_schema(settings: Settings) -> str:
    return settings.value("schema") or default_schema()


def resolve_actor(settings: Settings) -> str | None:
    """Return who runs the command, for the audit, or None if the system has no name for it."""
    actor: str | None = settings.value("actor")
    if actor:
        return actor
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        # A container may run as a user id without a name.
        return None


def _uses_prepared_statements(settings: Settings) -> bool:
    return settings.value("prepared_statements") is not False


def resolve_database(settings: Settings) -> Any:
    """Return the shards of the settings, or else the connection.

    The flag --connection takes precedence, to run a worker on one of the shards.
    """
    shards, connection = (settings.values.get(name) for name in ("shards", "connection"))
    is_chosen = connection is not None and connection.source is SettingSource.FLAG
    if shards is None or (is_chosen and shards.source is not SettingSource.FLAG):
        return settings.value("connection")
    lists: dict[str, Any] = {
        name: [each.strip() for each in text.split(",") if each.strip()]
        for name in ("new", "draining")
        if (text := settings.value(f"{name}_shards")) is not None
    }
    if isinstance(shards.value, str):
        return Shards(parse_shards(shards.value), **lists)
    app_shards: BaseShards = shards.value
    return app_shards._derive(Shards, **lists)


def open_shards(settings: Settings) -> Client | Shards:
    """Open a client on the shards of the settings, or else on the one database."""
    database = resolve_database(settings)
    if not isinstance(database, BaseShards):
        return open_client(settings)
    return database._derive(
        Shards,
        schema=settings.value("schema"),
        ext_schema=settings.value("ext_schema"),
        prepared_statements=_uses_prepared_statements(settings),
        actor=resolve_actor(settings),
    )


def open_client(settings: Settings, tasks: TaskRouter[Any] | None = None) -> Client:
    """Open a client on the database of the settings. The options of these tasks apply."""
    return Client(
        settings.value("connection"),
        schema=settings.value("schema"),
        ext_schema=settings.value("ext_schema"),
        prepared_statements=_uses_prepared_statements(settings),
        tasks=tasks,
        actor=resolve_actor(settings),
    )


@contextmanager
def open_database(settings: Settings) -> Iterator[SyncDatabase]:
    """Open the database of the settings, to run plans on it."""
    database = open_sync_database(
        settings.value("connection"),
        Schemas.from_names(resolve_schema(settings), settings.value("ext_schema")),
        prepared_statements=_uses_prepared_statements(settings),
    )
    try:
        yield database
    finally:
        database.close()
