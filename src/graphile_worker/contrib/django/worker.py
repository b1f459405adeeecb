"""The app of `manage.py graphile_worker`: `--app graphile_worker.contrib.django.worker:app`."""

import os

import django
from django.apps import apps

if not apps.ready:
    django.setup()

from graphile_worker.contrib.django._app import DjangoApp, app_for
from graphile_worker.contrib.django._selection import TaskSelection

# The command passes its own flags in these variables.
DATABASE_VARIABLE = "GRAPHILE_WORKER_DJANGO_DATABASE"
SELECTION_VARIABLE = "GRAPHILE_WORKER_DJANGO_TASKS"


def _build_app() -> DjangoApp:
    chosen = app_for(os.environ.get(DATABASE_VARIABLE))
    selection = os.environ.get(SELECTION_VARIABLE)
    if not selection:
        return chosen
    return TaskSelection.from_text(selection).apply(chosen)


app = _build_app()
