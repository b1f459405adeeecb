"""What the pages share: links, the database of a request, and errors as messages."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from django import VERSION
from django.contrib.admin.utils import quote, unquote
from django.http import Http404, QueryDict
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse

from graphile_worker._db.database import run_plan_sync
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.query import Plan
from graphile_worker._support.error_format import make_printable
from graphile_worker.contrib.django._admin.searches import Search, SearchDenied, Select
from graphile_worker.contrib.django._app import app, app_for
from graphile_worker.contrib.django._database import DjangoDatabase
from graphile_worker.contrib.django._queues import list_aliases
from graphile_worker.errors import GraphileWorkerError

T = TypeVar("T")

PAGE_SIZE = 50

# Since this version the breadcrumbs of the admin are a list.
BREADCRUMB_LIST_VERSION = (6, 1)


@dataclass(frozen=True, slots=True)
class Queue:
    """The queue of a request, in the database of an alias."""

    alias: str
    database: DjangoDatabase

    @property
    def schemas(self) -> Schemas:
        """Return the schemas of the queue."""
        return self.database.schemas

    def run(self, plan: Plan[T]) -> T:
        """Run a plan on Django's connection."""
        return run_plan_sync(self.database, plan)


class QueuePages:
    """Pages of a model. Each method `show_…` is a page."""

    def __init__(self, model_admin: Any) -> None:
        self.admin_site = model_admin.admin_site
        self.opts = model_admin.opts

    def get_url(self, page: str, *args: object) -> str:
        """Return the URL of a page."""
        return self._reverse(f"{self.opts.app_label}_{self.opts.model_name}_{page}", args)

    def find_url(self, request: Any, model: str, page: str, *args: object) -> str:
        """Return the URL of a page of another model, or nothing if the user may not see it."""
        if not self.has_permission(request, f"view_{model}"):
            return ""
        try:
            return self._reverse(f"{self.opts.app_label}_{model}_{page}", args)
        except NoReverseMatch:
            # A project may register some of the models on its own site.
            return ""

    def has_permission(self, request: Any, codename: str) -> bool:
        """Return whether the user has a permission of this app."""
        return bool(request.user.has_perm(f"{self.opts.app_label}.{codename}"))

    def get_queue(self, request: Any) -> Queue:
        """Return the queue of the parameter `database`, or that of the app.

        Raises:
            Http404: The database has no queue.
        """
        alias = request.GET.get("database") or app.alias
        if alias not in list_aliases():
            raise Http404(f"database {alias!r} has no queue")
        return Queue(alias, app_for(alias).database)

    def build_link(
        self, url: str, queue: Queue, parameters: Mapping[str, str] = MappingProxyType({})
    ) -> str:
        """Return a URL with parameters, and with the database if it is not the app's."""
        if not url:
            return ""
        query = QueryDict(mutable=True)
        query.update({name: value for name, value in parameters.items() if value})
        if queue.alias != app.alias:
            query["database"] = queue.alias
        return f"{url}?{query.urlencode()}" if query else url

    def render(
        self,
        request: Any,
        queue: Queue,
        template: str,
        title: str,
        context: Mapping[str, Any],
        *,
        is_list: bool = False,
    ) -> TemplateResponse:
        """Render a page of the admin."""
        request.current_app = self.admin_site.name
        return TemplateResponse(
            request,
            f"admin/graphile_worker/{template}.html",
            {
                **self.admin_site.each_context(request),
                "opts": self.opts,
                "title": title,
                "is_list": is_list,
                "list_url": self.build_link(self.get_url("changelist"), queue),
                "has_breadcrumb_list": VERSION >= BREADCRUMB_LIST_VERSION,
                "database": "" if queue.alias == app.alias else queue.alias,
                "databases": self._list_databases(queue),
                **context,
            },
        )

    def build_list_context(
        self,
        queue: Queue,
        search: Search,
        listing: "Listing[Any]",
        *,
        is_first: bool,
        older: str | None,
    ) -> dict[str, Any]:
        """Return the search, the problems and the links to other pages of a list."""
        url, parameters = self.get_url("changelist"), search.parameters
        older_url = ""
        if older is not None:
            older_url = self.build_link(url, queue, {**parameters, "before": older})
        return {
            "search": search,
            "selects": listing.selects,
            "problems": listing.problems,
            "clear_url": self.build_link(url, queue) if parameters else "",
            "newest_url": "" if is_first else self.build_link(url, queue, parameters),
            "older_url": older_url,
        }

    def _reverse(self, name: str, args: Iterable[object]) -> str:
        quoted = [quote(str(each)) for each in args]
        return str(reverse(f"admin:{name}", args=quoted, current_app=self.admin_site.name))

    def _list_databases(self, queue: Queue) -> list[tuple[str, str, bool]]:
        """Return the name, the link and the choice of each database, if there are several."""
        url = self.get_url("changelist")
        links = [
            (alias, f"{url}?{urlencode({'database': alias})}", alias == queue.alias)
            for alias in sorted(list_aliases())
        ]
        return links if len(links) > 1 else []


@dataclass(slots=True)
class Listing(Generic[T]):
    """A page of a list with its choices, or the problems that prevented it."""

    page: T | None = None
    selects: list[Select] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read_listing(
    queue: Queue, selects: Plan[list[Select]], plan_page: Callable[[], Plan[T]]
) -> Listing[T]:
    """Read the choices of a list and one of its pages."""
    listing: Listing[T] = Listing()
    try:
        listing.selects = queue.run(selects)
        listing.page = queue.run(plan_page())
    except (GraphileWorkerError, SearchDenied) as error:
        listing.problems.append(format_problem(error))
    return listing


def parse_int(text: str | None) -> int | None:
    """Return the number of a parameter or of a URL, or None if there is none.

    Raises:
        Http404: It is not a number that an id can be.
    """
    if not text:
        return None
    try:
        number = int(text)
    except ValueError:
        raise Http404(f"{text!r} is not an id") from None
    if abs(number) >= 2**63:
        raise Http404(f"{text!r} is not an id")
    return number


def parse_object_id(object_id: str) -> int:
    """Return the id in the URL of a page.

    Raises:
        Http404: It is not an id.
    """
    number = parse_int(unquote(object_id))
    if number is None:
        raise Http404("no id")
    return number


def format_problem(error: Exception) -> str:
    """Return an error of the queue as a message."""
    return make_printable(error)
