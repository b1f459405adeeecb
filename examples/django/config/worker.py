"""What the worker runs: the tasks of the shop, in a process in which Django is set up.

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
def fresh_connections(moment: RunningJob) -> Iterator[None]:
    """Around each job, in the thread that runs it, what Django does around each request.

    It is here and not beside the tasks, because it would close the connection of a TestCase.
    """
    close_old_connections()
    reset_queries()
    try:
        yield
    finally:
        close_old_connections()
