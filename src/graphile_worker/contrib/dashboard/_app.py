"""The ASGI application: static files, pages, and the API with its checks in one place."""

import gzip
import hashlib
import html
import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from http import HTTPStatus
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from graphile_worker._support.error_format import format_error
from graphile_worker.contrib.dashboard._access import Access
from graphile_worker.contrib.dashboard._api import ApiRequest, ApiRoute, Parameter, Problem
from graphile_worker.contrib.dashboard._auth import (
    Authentication,
    ClosedAuthentication,
    Identity,
    LoginAuthentication,
    Sessions,
)
from graphile_worker.contrib.dashboard._encode import encode
from graphile_worker.contrib.dashboard._security import (
    RequestGuard,
    add_security_headers,
    check_csrf_token,
)
from graphile_worker.contrib.dashboard._service import Service, translate_error
from graphile_worker.contrib.dashboard._texts import PROBLEM_TITLES
from graphile_worker.contrib.dashboard._users import Permission, User
from graphile_worker.contrib.dashboard._wording import write_sentence

STATIC_FOLDER = Path(__file__).parent / "static"
API_PREFIX = "/api/v1"

# A payload may have 1 MB, and more as the text inside of a JSON object.
MAX_BODY_BYTES = 8_000_000
# A request that needs no user has a name and a password.
MAX_PUBLIC_BODY_BYTES = 4_096

# What a read-only dashboard, or a person who only views, may still do.
VIEW_PERMISSIONS = frozenset({Permission.VIEW, Permission.VIEW_PAYLOAD})

ANONYMOUS = User("anonymous", permissions=())

# nosniff: the browser runs and applies only files with these types.
CONTENT_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".html": "text/html; charset=utf-8",
}
COMPRESSED_TYPES = (".js", ".css", ".svg")

# Relative, and without dots at the beginning of a part.
FILE_PATTERN = re.compile(r"(\w[\w-]*/)*\w[\w.-]*", re.ASCII)

BASE_PATTERN = re.compile(rb'<base href="[^"]*">')

PLAIN_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title></head>
<body><h1>{title}</h1><p>{text}</p></body>
</html>
"""

MISSING_INDEX = b"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><base href="/"><title>Graphile Worker</title></head>
<body></body>
</html>
"""

logger = logging.getLogger("graphile_worker.dashboard")


class Application:
    """Answers requests. Each one passes the same checks, in the same order."""

    def __init__(
        self,
        service: Service,
        routes: Iterable[ApiRoute],
        *,
        authentication: Authentication,
        sessions: Sessions,
        guard: RequestGuard,
    ) -> None:
        self._service = service
        self._matcher = RouteMatcher(routes)
        self._authentication = authentication
        self._sessions = sessions
        self._guard = guard
        self._files: dict[str, StaticFile] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of HTTP."""
        request = Request(scope, receive)
        path = get_raw_path(scope)
        is_api = path.startswith(f"{API_PREFIX}/")
        try:
            self._guard.check_host(request)
            response = await (
                self._answer_api(request, path) if is_api else self._answer(request, path)
            )
        except Exception as error:
            response = self._answer_error(error, request, is_api=is_api)
        await add_security_headers(response)(scope, receive, send)

    # Pages and files

    async def _answer(self, request: Request, path: str) -> Response:
        if request.method not in ("GET", "HEAD"):
            raise Problem(405, "method_not_allowed", "only the API accepts changes")
        match path:
            case "":
                return RedirectResponse(self._guard.get_base_path(request), 308)
            case "/healthz":
                return PlainTextResponse("ok")
            case "/healthz/ready":
                return await self._answer_ready()
            case "/robots.txt":
                return PlainTextResponse("User-agent: *\nDisallow: /\n")
            case "/favicon.ico":
                return Response(status_code=404)
        if path.startswith("/static/"):
            return self._answer_file(request, unquote(path.removeprefix("/static/")))
        return await self._answer_page(request)

    async def _answer_ready(self) -> Response:
        if await self._service.is_ready():
            return PlainTextResponse("ok")
        return PlainTextResponse("the database cannot be read", 503)

    def _answer_file(self, request: Request, name: str) -> Response:
        file = self._find_file(name)
        if file is None:
            raise Problem(404, "not_found", "this file does not exist")
        headers = {"etag": file.tag, "cache-control": "no-cache", "vary": "accept-encoding"}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        headers["content-type"] = file.content_type
        if file.compressed is not None and "gzip" in request.headers.get("accept-encoding", ""):
            return Response(file.compressed, headers={**headers, "content-encoding": "gzip"})
        return Response(file.body, headers=headers)

    async def _answer_page(self, request: Request) -> Response:
        identity = await self._authentication.identify(request)
        if isinstance(identity, Response):
            return identity
        if identity is None and not isinstance(self._authentication, LoginAuthentication):
            raise Problem(403, "forbidden", "you may not use this dashboard")
        file = self._find_file("index.html")
        base = html.escape(self._guard.get_base_path(request), quote=True)
        page = BASE_PATTERN.sub(
            lambda _match: f'<base href="{base}">'.encode(),
            MISSING_INDEX if file is None else file.body,
        )
        return Response(page, headers={"content-type": CONTENT_TYPES[".html"]})

    def _find_file(self, name: str) -> "StaticFile | None":
        if not FILE_PATTERN.fullmatch(name):
            return None
        path = STATIC_FOLDER / name
        if path.suffix not in CONTENT_TYPES or not path.is_file():
            return None
        changed_at = path.stat().st_mtime_ns
        file = self._files.get(name)
        if file is None or file.changed_at != changed_at:
            file = self._files[name] = StaticFile.read(path, changed_at)
        return file

    # The API

    async def _answer_api(self, request: Request, path: str) -> Response:
        found = self._matcher.find(request.method, path.removeprefix(API_PREFIX))
        if isinstance(self._authentication, ClosedAuthentication):
            await self._authentication.identify(request)
        if found is None:
            raise Problem(404, "not_found", "this route does not exist")
        route, parameters = found
        is_change = route.method != "GET"
        if is_change:
            self._guard.check_origin(request)
        identity = await self._identify(request)
        if is_change:
            check_csrf_token(request, self._sessions.build_csrf_token(identity))
        user = await self._check_permission(route, identity)
        api_request = ApiRequest(
            service=self._service,
            user=user,
            path=parameters,
            query=_read_query(route, request),
            body=await _read_body(route, request) if is_change else {},
            raw=request,
        )
        answer = await route.handler(api_request)
        if isinstance(answer, Response):
            return answer
        return Response(encode(answer), route.status, media_type="application/json")

    async def _identify(self, request: Request) -> Identity | None:
        identity = await self._authentication.identify(request)
        if isinstance(identity, Response):
            # A redirect to a login page is for pages.
            identity = None
        request.state.access = Access(
            identity=identity,
            authentication=self._authentication,
            sessions=self._sessions,
            base_path=self._guard.get_base_path(request),
            is_secure=self._guard.get_scheme(request) == "https",
        )
        return identity

    async def _check_permission(self, route: ApiRoute, identity: Identity | None) -> User:
        """Check that a person may use a route. Each request of the API passes here."""
        is_change = route.method != "GET"
        if route.permission is None:
            return ANONYMOUS if identity is None else self._limit_user(identity.user)
        if identity is None:
            raise Problem(401, "unauthenticated", "sign in first")
        if is_change:
            await self._service.get_features()
            if self._service.is_read_only:
                raise Problem(403, "forbidden", "this dashboard is read-only", is_read_only=True)
        user = self._limit_user(identity.user)
        # Such a route asks for the permission to view, and for another one of its parameters.
        needs_more = is_change and route.permission is Permission.VIEW
        if not user.may(route.permission) or (needs_more and user.permissions <= VIEW_PERMISSIONS):
            raise Problem(
                403,
                "forbidden",
                f"you do not have the permission {route.permission}",
                permission=route.permission,
            )
        return user

    def _limit_user(self, user: User) -> User:
        """Return the user with the permissions that this dashboard allows."""
        allowed = user.permissions
        if self._service.is_read_only:
            allowed &= VIEW_PERMISSIONS
        if self._service.settings.hide_payloads:
            allowed -= {Permission.VIEW_PAYLOAD}
        return user if allowed == user.permissions else User(user.name, permissions=allowed)

    # Errors

    def _answer_error(self, error: Exception, request: Request, *, is_api: bool) -> Response:
        problem = translate_error(error)
        if problem is None:
            logger.error("request failed: %s", format_error(error))
            problem = Problem(500, "internal_error", "the dashboard failed. See its log.")
        response = answer_problem(problem) if is_api else _answer_plain_page(problem)
        if "retry_after" in problem.more:
            response.headers["retry-after"] = str(problem.more["retry_after"])
        return response


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file of the browser's part."""

    body: bytes
    compressed: bytes | None
    content_type: str
    tag: str
    changed_at: int

    @classmethod
    def read(cls, path: Path, changed_at: int) -> "StaticFile":
        """Read a file."""
        body = path.read_bytes()
        return cls(
            body,
            gzip.compress(body, mtime=0) if path.suffix in COMPRESSED_TYPES else None,
            CONTENT_TYPES[path.suffix],
            f'"{hashlib.sha256(body).hexdigest()[:32]}"',
            changed_at,
        )


class RouteMatcher:
    """Finds the route of a path that is still percent-encoded, so that names may have slashes."""

    def __init__(self, routes: Iterable[ApiRoute]) -> None:
        # A fixed path takes precedence over one with parameters.
        ordered = sorted(routes, key=lambda route: route.path.count("{"))
        self._patterns = [(_compile(route.path), route) for route in ordered]

    def find(self, method: str, path: str) -> tuple[ApiRoute, Mapping[str, str]] | None:
        """Return the route and its parameters, or None if no route has the path.

        Raises:
            Problem: The path exists, but not with this method.
        """
        found = [
            (route, {name: unquote(value) for name, value in match.groupdict().items()})
            for pattern, route in self._patterns
            if (match := pattern.fullmatch(path)) is not None
        ]
        for route, parameters in found:
            if route.method == method:
                return route, parameters
        if found:
            raise Problem(405, "method_not_allowed", f"{method} is not possible here")
        return None


def answer_problem(problem: Problem) -> Response:
    """Return a problem as `application/problem+json`."""
    body = {
        **problem.more,
        "type": "about:blank",
        "title": PROBLEM_TITLES.get(problem.code, HTTPStatus(problem.status).phrase),
        "status": problem.status,
        "code": problem.code,
        "detail": write_sentence(problem.detail),
    }
    return Response(encode(body), problem.status, media_type="application/problem+json")


def get_raw_path(scope: Scope) -> str:
    """Return the path below the mount point, percent-encoded as the browser sent it."""
    path, root = scope["path"], scope.get("root_path", "").rstrip("/")
    if root and (path == root or path.startswith(f"{root}/")):
        path = path[len(root) :]
    raw = scope.get("raw_path")
    if isinstance(raw, bytes):
        text = raw.partition(b"?")[0].decode("latin-1")
        # Servers and mounts differ in what they remove from which of the two.
        for match in re.finditer("/", text):
            if unquote(text[match.start() :]) == path:
                return text[match.start() :]
    return quote(path)


def _compile(path: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", path)
    return re.compile(
        "".join(
            f"(?P<{part}>[^/]+)" if index % 2 else re.escape(part)
            for index, part in enumerate(parts)
        )
    )


def _answer_plain_page(problem: Problem) -> Response:
    title = HTTPStatus(problem.status).phrase
    page = PLAIN_PAGE.format(title=html.escape(title), text=html.escape(problem.detail))
    return Response(page, problem.status, {"content-type": CONTENT_TYPES[".html"]})


# Parameters


def _read_query(route: ApiRoute, request: Request) -> Mapping[str, str]:
    query = dict(request.query_params)
    for parameter in route.query:
        value = query.get(parameter.name)
        if value is None:
            if parameter.is_required:
                raise _build_bad_request(parameter, "is missing")
        elif parameter.kind is int and not re.fullmatch(r"-?[0-9]{1,19}", value):
            raise _build_bad_request(parameter, "must be an integer")
    return query


async def _read_body(route: ApiRoute, request: Request) -> Mapping[str, Any]:
    chunks, size = [], 0
    limit = MAX_PUBLIC_BODY_BYTES if route.permission is None else MAX_BODY_BYTES
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise Problem(413, "too_large", f"the request has more than {limit:,} bytes")
        chunks.append(chunk)
    text = b"".join(chunks) or b"{}"
    try:
        body = json.loads(text, parse_float=Decimal, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        raise Problem(400, "bad_request", "the request is not valid JSON") from None
    if not isinstance(body, dict):
        raise Problem(400, "bad_request", "the request is not a JSON object")
    for parameter in route.body:
        _check_member(parameter, body)
    return body


def _check_member(parameter: Parameter, body: Mapping[str, Any]) -> None:
    value = body.get(parameter.name)
    if value is None:
        if parameter.is_required:
            raise _build_bad_request(parameter, "is missing")
        return
    kinds = (Decimal, int) if parameter.kind is float else (parameter.kind,)
    is_wrong_bool = isinstance(value, bool) and parameter.kind is not bool
    if is_wrong_bool or not isinstance(value, kinds):
        raise _build_bad_request(parameter, f"must be of type {KIND_NAMES[parameter.kind]}")


KIND_NAMES: Mapping[type, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
}


def _build_bad_request(parameter: Parameter, reason: str) -> Problem:
    return Problem(400, "bad_request", f"{parameter.name} {reason}", parameter=parameter.name)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
