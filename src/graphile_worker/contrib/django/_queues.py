"""Which databases of a project have a queue."""

from typing import Any

from django.conf import settings
from django.db import router
from django.utils.module_loading import import_string

from graphile_worker.contrib.django._settings import get_settings

PACKAGE = "graphile_worker.contrib.django"
BACKEND = f"{PACKAGE}.GraphileBackend"


def has_queue(connection: Any, app_label: str) -> bool:
    """Return whether a database of Django is one that has a queue."""
    if connection.vendor != "postgresql" or connection.alias not in list_aliases():
        return False
    return bool(router.allow_migrate(connection.alias, app_label, graphile_worker=True))


def list_aliases() -> set[str]:
    """Return the aliases of all databases that have a queue."""
    return {get_settings().database, *list_backend_aliases()}


def list_backend_aliases() -> list[str]:
    """Return the aliases that entries of `TASKS` name, if their backend is that of this package."""
    entries = getattr(settings, "TASKS", {}).values()
    named = [
        (entry.get("BACKEND"), (entry.get("OPTIONS") or {}).get("DATABASE")) for entry in entries
    ]
    return [alias for backend, alias in named if alias and _is_own_backend(backend)]


def _is_own_backend(path: Any) -> bool:
    if path == BACKEND:
        return True
    try:
        kind = import_string(path)
    except ImportError:
        # Django reports it.
        return False
    return any(base.__module__.startswith(PACKAGE) for base in getattr(kind, "__mro__", ()))
