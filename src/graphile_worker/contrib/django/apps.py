"""The configuration of the Django app."""

from importlib import import_module

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules

from graphile_worker.contrib.django import _checks, _flush
from graphile_worker.contrib.django._settings import get_settings


class GraphileWorkerConfig(AppConfig):
    """Imports the tasks of all installed apps, and registers checks."""

    name = "graphile_worker.contrib.django"
    label = "graphile_worker"
    verbose_name = "Graphile Worker"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Prepare the app, without a query."""
        _checks.register_checks()
        _flush.install(self)
        try:
            settings = get_settings()
        except ImproperlyConfigured:
            # A check reports it.
            return
        if settings.tasks_module is not None:
            autodiscover_modules(settings.tasks_module)
        for module in settings.imports:
            import_module(module)
