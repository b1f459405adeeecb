"""The app of the worker: the tasks of the shop, after Django is set up.

graphile-worker --app config.worker:app
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import django
from django.db import close_old_connections, reset_queries
from graphile_worker import RunningJob

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django.setup()

from shop.tasks import app  # noqa: E402  # it imports models, which need the line above

__all__ = ["app"]


@app.around(RunningJob)
@contextmanager
def fresh_connections(event: RunningJob) -> Iterator[None]:
    """Close broken and expired connections around each job, as Django does around each request.

    Keep this hook away from the tasks: it would close the connection of a TestCase.
    """
    close_old_connections()
    reset_queries()
    try:
        yield
    finally:
        close_old_connections()
