"""The admin of Django: jobs, workers and outcomes, unless `GRAPHILE_WORKER["ADMIN"]` is False."""

from django.contrib import admin
from django.core.exceptions import ImproperlyConfigured

from graphile_worker.contrib.django._admin.model_admins import (
    JobAdmin,
    OutcomeAdmin,
    WorkerAdmin,
)
from graphile_worker.contrib.django._settings import get_settings
from graphile_worker.contrib.django.models import Job, Outcome, Worker

__all__ = ["JobAdmin", "OutcomeAdmin", "WorkerAdmin"]


def _is_enabled() -> bool:
    try:
        return get_settings().admin
    except ImproperlyConfigured:
        # A check reports it.
        return False


if _is_enabled():
    admin.site.register(Job, JobAdmin)
    admin.site.register(Worker, WorkerAdmin)
    admin.site.register(Outcome, OutcomeAdmin)
