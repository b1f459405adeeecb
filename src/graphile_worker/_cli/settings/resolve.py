"""Sources: the tasks, the crontab and the database that the settings name."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from graphile_worker._cli.settings.layers import Settings
from graphile_worker._db.database import SyncDatabase
from graphile_worker._db.external_pools import open_sync_database
from graphile_worker._discovery.discovery import load_app
from graphile_worker._sql.identifiers import Schemas
from graphile_worker.options import default_schema
from graphile_worker.sync import Client
from graphile_worker.tasks import TaskRouter

DEFAULT_TASKS_FOLDER = Path("tasks")
DEFAULT_CRONTAB = Path("crontab")


def resolve_crontab(settings: Settings) -> Path | None:
    """The crontab that was named, or else the one that lies here."""
    given: Path | None = settings.value("crontab")
    if given is not None:
        return given
    return DEFAULT_CRONTAB if DEFAULT_CRONTAB.is_file() else None


def resolve_tasks_folder(settings: Settings) -> Path | None:
    """The folder that was named, or else the one that lies here, unless there is an app."""
    if settings.value("app") is not None:
        return None
    given: Path | None = settings.value("tasks")
    if given is not None:
        return given
    return DEFAULT_TASKS_FOLDER if DEFAULT_TASKS_FOLDER.is_dir() else None


def resolve_app(settings: Settings) -> TaskRouter[Any] | None:
    path = settings.value("app")
    return None if path is None else load_app(path)


def resolve_task_source(settings: Settings) -> TaskRouter[Any] | Path | None:
    """The app, or else the folder, whose files can import what they need then."""
    if (app := resolve_app(settings)) is not None:
        return app
    if (folder := resolve_tasks_folder(settings)) is None:
        return None
    # A task may import what lies beside the folder, and here.
    for place in (folder.absolute().parent, Path.cwd()):
        if str(place) not in sys.path:
            sys.path.insert(0, str(place))
    return folder


def open_client(settings: Settings, tasks: TaskRouter[Any] | None = None) -> Client:
    """For the database and the schema of the settings; the definitions of these tasks apply."""
    prepared = settings.value("prepared_statements")
    return Client(
        settings.value("connection"),
        schema=settings.value("schema"),
        ext_schema=settings.value("ext_schema"),
        prepared_statements=True if prepared is None else prepared,
        tasks=tasks,
    )


@contextmanager
def open_database(settings: Settings) -> Iterator[SyncDatabase]:
    """The same, to carry plans out on; closed in the end."""
    prepared = settings.value("prepared_statements")
    database = open_sync_database(
        settings.value("connection"),
        Schemas.from_names(resolve_schema(settings), settings.value("ext_schema")),
        prepared_statements=True if prepared is None else prepared,
    )
    try:
        yield database
    finally:
        database.close()


def resolve_schema(settings: Settings) -> str:
    return settings.value("schema") or default_schema()
