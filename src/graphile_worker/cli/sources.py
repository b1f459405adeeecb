"""Sources: the app, the crontab and the database that flags name."""

from pathlib import Path
from typing import Any

from graphile_worker.app import App
from graphile_worker.loading import load_app
from graphile_worker.sync import Client

CRONTAB = Path("crontab")


def crontab_file(given: str | None) -> Path | None:
    """The crontab that was named, or else the one that lies here."""
    if given is not None:
        return Path(given)
    return CRONTAB if CRONTAB.is_file() else None


def app_at(path: str | None) -> App[Any] | None:
    """The app of --app; None for a mere router, which has no database of its own."""
    found = None if path is None else load_app(path)
    return found if isinstance(found, App) else None


def client_for(
    app_path: str | None, connection: str | None, schema: str | None, *, prepared: bool = True
) -> Client:
    """For the database and the schema of the flags, else of the app."""
    app = app_at(app_path)
    if app is not None:
        connection, schema = connection or app.dsn, schema or app.schema
    return Client(connection, schema=schema, prepared_statements=prepared)
