"""Who is signed in, what they may do, and how they sign in and out."""

import logging

from starlette.responses import Response

from graphile_worker.contrib.dashboard._access import Access, get_access
from graphile_worker.contrib.dashboard._api import ApiRequest, ApiRoute, Parameter, Problem
from graphile_worker.contrib.dashboard._auth import COOKIE_NAME, LoginAuthentication
from graphile_worker.contrib.dashboard._encode import encode
from graphile_worker.contrib.dashboard._texts import TEXTS, list_obstacles
from graphile_worker.contrib.dashboard._view import (
    BRIEF_ENDED_COLUMNS,
    BULK_FIELDS,
    CHANGES,
    ENQUEUE_FIELDS,
    OVERVIEW_CHART,
    PAGES,
)

# Fixed texts of the dashboard and of its pages, which the browser gets once.
PAGE_TEXTS = {
    **TEXTS,
    "pages": PAGES,
    "changes": CHANGES,
    "brief_columns": BRIEF_ENDED_COLUMNS,
    "overview_chart": OVERVIEW_CHART,
    "enqueue_fields": ENQUEUE_FIELDS,
    "bulk_fields": BULK_FIELDS,
}

logger = logging.getLogger("graphile_worker.dashboard")


async def get_session(request: ApiRequest) -> object:
    """Return the session. People who are not signed in learn only how to sign in."""
    service, settings = request.service, request.service.settings
    access = get_access(request.raw)
    answer: dict[str, object] = {
        "user": None,
        "csrf": access.sessions.build_csrf_token(access.identity),
        "login": access.authentication.methods,
        "environment": None
        if settings.environment is None
        else {"name": settings.environment, "level": settings.environment_level},
        "schema": None,
        "database": None,
        "features": dict.fromkeys(("history", "audit", "app", "pauses"), False),
        "read_only": settings.read_only,
        "hide_payloads": settings.hide_payloads,
        "version": None,
        "trace_url": None,
        "obstacles": {},
        "texts": {},
    }
    if access.identity is None:
        return answer
    features = await service.get_features()
    if features is not None:
        answer["database"] = features.database
        answer["features"] = {
            "history": features.has_history,
            "audit": features.has_audit,
            "app": service.app is not None,
            "pauses": features.has_pauses,
        }
    return answer | {
        "user": _describe_user(request),
        "schema": service.schemas.shared,
        "read_only": service.is_read_only,
        "version": service.version,
        "trace_url": settings.trace_url,
        "obstacles": list_obstacles(
            request.user,
            is_read_only=service.is_read_only,
            hide_payloads=settings.hide_payloads,
        ),
        "texts": PAGE_TEXTS,
    }


async def log_in(request: ApiRequest) -> Response:
    """Check a token or a password, and set the cookie of a new session."""
    access = get_access(request.raw)
    if not isinstance(access.authentication, LoginAuthentication):
        raise Problem(
            404, "not_found", "the application that mounts this dashboard signs people in"
        )
    identity, cookie = access.authentication.sign_in(
        request.raw,
        token=request.body.get("token"),
        password=request.body.get("password"),
        name=request.body.get("user"),
    )
    logger.info("signed in (user=%s)", identity.user.name)
    response = _answer(
        {
            "user": {"name": identity.user.name, "permissions": sorted(identity.user.permissions)},
            "csrf": access.sessions.build_csrf_token(identity),
        }
    )
    _set_cookie(response, cookie, access)
    return response


async def log_out(request: ApiRequest) -> Response:
    """End the session."""
    access = get_access(request.raw)
    authentication, identity = access.authentication, access.identity
    if isinstance(authentication, LoginAuthentication) and identity is not None:
        authentication.sign_out(identity)
    response = _answer({})
    response.delete_cookie(
        COOKIE_NAME, access.base_path, secure=access.is_secure, httponly=True, samesite="strict"
    )
    return response


def _describe_user(request: ApiRequest) -> object:
    return {"name": request.user.name, "permissions": sorted(request.user.permissions)}


def _answer(value: object) -> Response:
    return Response(encode(value), media_type="application/json")


def _set_cookie(response: Response, cookie: str, access: Access) -> None:
    response.set_cookie(
        COOKIE_NAME,
        cookie,
        path=access.base_path,
        max_age=access.sessions.lifetime_seconds,
        secure=access.is_secure,
        httponly=True,
        samesite="strict",
    )


ROUTES = (
    ApiRoute(
        method="GET",
        path="/session",
        permission=None,
        handler=get_session,
        summary="Get who is signed in, and what this dashboard has.",
        answer={
            "user": {"name": "ann", "permissions": ["view"]},
            "csrf": "5f0c…",
            "login": ["token"],
            "environment": {"name": "production", "level": "production"},
            "schema": "graphile_worker",
            "database": "shop",
            "features": {"history": True, "audit": True, "app": True, "pauses": True},
            "read_only": False,
            "hide_payloads": False,
            "version": "1.0",
            "trace_url": None,
            "obstacles": {"view": None},
            "texts": {"states": []},
        },
    ),
    ApiRoute(
        method="POST",
        path="/login",
        permission=None,
        handler=log_in,
        summary="Sign in with a token or a password.",
        body=(
            Parameter(name="token", help="Token of the link that the command prints"),
            Parameter(name="password", help="Password of the dashboard"),
            Parameter(name="user", help="Your name, for the audit"),
        ),
        answer={"user": {"name": "ann", "permissions": ["view"]}, "csrf": "5f0c…"},
    ),
    ApiRoute(
        method="POST",
        path="/logout",
        permission=None,
        handler=log_out,
        summary="Sign out.",
        answer={},
    ),
)
