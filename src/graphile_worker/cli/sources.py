"""Sources: the tasks, the crontab and the database that the settings name."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from graphile_worker.cli.settings import Settings
from graphile_worker.db.database import BlockingDatabase
from graphile_worker.db.lent import open_blocking_database
from graphile_worker.loading import load_app
from graphile_worker.options import default_schema
from graphile_worker.sql.identifiers import Schemas
from graphile_worker.sync import Client
from graphile_worker.tasks import Tasks

FOLDER = Path("tasks")
CRONTAB = Path("crontab")


def crontab_file(settings: Settings) -> Path | None:
    """The crontab that was named, or else the one that lies here."""
    given: Path | None = settings.value("crontab")
    if given is not None:
        return given
    return CRONTAB if CRONTAB.is_file() else None


def tasks_folder(settings: Settings) -> Path | None:
    """The folder that was named, or else the one that lies here, unless there is an app."""
    if settings.value("app") is not None:
        return None
    given: Path | None = settings.value("tasks")
    if given is not None:
        return given
    return FOLDER if FOLDER.is_dir() else None


def app_of(settings: Settings) -> Tasks[Any] | None:
    path = settings.value("app")
    return None if path is None else load_app(path)


def tasks_of(settings: Settings) -> Tasks[Any] | Path | None:
    """The app, or else the folder, whose files can import what they need then."""
    if (app := app_of(settings)) is not None:
        return app
    if (folder := tasks_folder(settings)) is None:
        return None
    # A task may import what lies beside the folder, and here.
    for place in (folder.absolute().parent, Path.cwd()):
        if str(place) not in sys.path:
            sys.path.insert(0, str(place))
    return folder


def client_of(settings: Settings, tasks: Tasks[Any] | None = None) -> Client:
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
def database_of(settings: Settings) -> Iterator[BlockingDatabase]:
    """The same, to carry plans out on; closed in the end."""
    prepared = settings.value("prepared_statements")
    database = open_blocking_database(
        settings.value("connection"),
        Schemas.named(schema_of(settings), settings.value("ext_schema")),
        prepared_statements=True if prepared is None else prepared,
    )
    try:
        yield database
    finally:
        database.close()


def schema_of(settings: Settings) -> str:
    return settings.value("schema") or default_schema()
