"""Graphile Worker for Django: install the app, migrate, run.

Add `graphile_worker.contrib.django` to `INSTALLED_APPS`, run `manage.py migrate`, define tasks with
`app` in a `tasks.py`, and run `manage.py graphile_worker`. Jobs are added on Django's connection,
in the transaction of `atomic()`.

Importing this module needs neither the app registry nor settings.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import django  # noqa: F401
except ImportError as error:
    raise ImportError('this needs Django: pip install "graphile-worker[django]"') from error

if TYPE_CHECKING:
    from graphile_worker.contrib.django._app import DjangoApp, app, app_for
    from graphile_worker.contrib.django._backend import GraphileBackend
    from graphile_worker.contrib.django._database import dsn_of
    from graphile_worker.contrib.django._job_options import job_options

__all__ = ["DjangoApp", "GraphileBackend", "app", "app_for", "dsn_of", "job_options"]

_MODULES = {
    "DjangoApp": "_app",
    "GraphileBackend": "_backend",
    "app": "_app",
    "app_for": "_app",
    "dsn_of": "_database",
    "job_options": "_job_options",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
