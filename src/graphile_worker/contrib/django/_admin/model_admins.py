"""The models in the admin: who may see them, and the URLs of their pages.

Every command of a project imports this module, so it imports the pages when one is opened.
"""

from collections.abc import Callable
from typing import Any, ClassVar

from django.contrib.admin import ModelAdmin
from django.core.exceptions import PermissionDenied
from django.urls import path
from django.utils.module_loading import import_string

LIST, DETAILS = ("", "changelist"), ("<path:object_id>/change/", "change")


class QueueAdmin(ModelAdmin):
    """A model of the queue.

    Models are never added, changed or deleted, so actions of Django do not apply.
    """

    actions = None
    pages_class: ClassVar[str]
    """The class with the pages, by its name."""
    pages: ClassVar[tuple[tuple[str, str], ...]] = (LIST,)
    """The route and the name of each page."""

    def has_add_permission(self, request: Any, *_: object) -> bool:
        """Return False: jobs are added by tasks."""
        return False

    def has_change_permission(self, request: Any, obj: object = None) -> bool:
        """Return False: the actions of the pages have their own permissions."""
        return False

    def has_delete_permission(self, request: Any, obj: object = None) -> bool:
        """Return False: Django would delete rows that workers have claimed."""
        return False

    def get_urls(self) -> list[Any]:
        """Return only the URLs of pages that exist."""
        prefix = f"{self.opts.app_label}_{self.opts.model_name}"
        return [
            path(route, self.admin_site.admin_view(self._build_view(name)), name=f"{prefix}_{name}")
            for route, name in self.pages
        ]

    def _build_view(self, name: str) -> Callable[..., Any]:
        def show(request: Any, **arguments: str) -> Any:
            if not self.has_view_permission(request):
                raise PermissionDenied
            pages = import_string(self.pages_class)(self)
            return getattr(pages, f"show_{name}")(request, **arguments)

        return show


class JobAdmin(QueueAdmin):
    """Lists, explains and changes jobs."""

    pages_class = "graphile_worker.contrib.django._admin.jobs.JobPages"
    pages = (LIST, ("action/", "action"), DETAILS)


class WorkerAdmin(QueueAdmin):
    """Lists workers that are registered or hold jobs."""

    pages_class = "graphile_worker.contrib.django._admin.workers.WorkerPages"


class OutcomeAdmin(QueueAdmin):
    """Lists ended jobs whose tasks keep outcomes."""

    pages_class = "graphile_worker.contrib.django._admin.outcomes.OutcomePages"
    pages = (LIST, DETAILS)
