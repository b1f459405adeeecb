"""The routes of the JSON API: each states its permission, its parameters and its answer.

A handler gets an `ApiRequest` and returns a value that `_encode.encode` turns into JSON, or raises
a `Problem`. `_app.py` turns routes into Starlette routes and checks permissions there, in one
place. `_openapi.py` describes them.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from graphile_worker.contrib.dashboard._users import Permission, User

if TYPE_CHECKING:
    from graphile_worker.contrib.dashboard._service import Service


# The code of a problem: the request needs a table of the companion schema.
COMPANION_MISSING = "companion_missing"


class Problem(Exception):
    """An answer that is an error, as `application/problem+json`.

    Args:
        status: The status code of HTTP.
        code: A stable name, for example `bad_filter`.
        detail: What is wrong and what to do, in one or two sentences.
        more: Further values of the answer.
    """

    def __init__(self, status: int, code: str, detail: str, **more: object) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.more = more


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiRequest:
    """What a handler gets."""

    service: "Service"
    user: User
    path: Mapping[str, str] = field(default_factory=dict)
    """The parameters of the path, decoded."""
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    """The JSON object of the request; numbers that are not integers are `Decimal`."""
    raw: Request


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """A parameter of a path, a query or a body, for the check and for the OpenAPI document."""

    name: str
    kind: type = str
    """str, int, bool, float, list or dict."""
    help: str
    is_required: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiRoute:
    """A route below `/api/v1`.

    Attributes:
        method: GET, POST or DELETE. Only GET changes nothing.
        path: For example `/jobs/{id}`.
        permission: What the user needs. None for what needs no user.
        handler: Answers a request.
        summary: What it does, in one line.
        query: Parameters of the query string.
        body: Members of the JSON object of the request.
        answer: An example of the answer, which the OpenAPI document shows and tests compare.
        status: The status code of success.
    """

    method: str
    path: str
    permission: Permission | None
    handler: Callable[[ApiRequest], Awaitable[object]]
    summary: str
    query: tuple[Parameter, ...] = ()
    body: tuple[Parameter, ...] = ()
    answer: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200
