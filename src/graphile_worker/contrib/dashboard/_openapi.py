"""The OpenAPI 3.1 document, built from the routes."""

import re
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

from graphile_worker.contrib.dashboard._api import ApiRequest, ApiRoute, Parameter
from graphile_worker.contrib.dashboard._users import Permission

SCHEMA_TYPES: Mapping[type, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
}

PROBLEM_SCHEMA = {
    "type": "object",
    "required": ["type", "title", "status", "code", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "description": "Stable name of the problem"},
        "detail": {"type": "string"},
    },
}

STREAM_PATH = "/stream"


def build_openapi_route(routes: Iterable[ApiRoute]) -> ApiRoute:
    """Build the route that returns the document, which describes itself too."""
    listed: list[ApiRoute] = []

    async def get_document(request: ApiRequest) -> object:
        return build_document(listed)

    route = ApiRoute(
        method="GET",
        path="/openapi.json",
        permission=Permission.VIEW,
        handler=get_document,
        summary="Get this document.",
        answer={"openapi": "3.1.0"},
    )
    listed += [*routes, route]
    return route


def build_document(routes: Iterable[ApiRoute]) -> dict[str, Any]:
    """Build the document of these routes."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _build_operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Graphile Worker dashboard",
            "version": version("graphile-worker"),
            "description": "Ids are strings, times are RFC 3339, durations are seconds.",
        },
        "servers": [{"url": "."}],
        "paths": paths,
        "components": {
            "schemas": {"Problem": PROBLEM_SCHEMA},
            "securitySchemes": {
                "session": {"type": "apiKey", "in": "cookie", "name": "gw_session"},
                "csrf": {"type": "apiKey", "in": "header", "name": "X-CSRF-Token"},
            },
        },
    }


def _build_operation(route: ApiRoute) -> dict[str, Any]:
    names = re.findall(r"\{(\w+)\}", route.path)
    content_type = "text/event-stream" if route.path == STREAM_PATH else "application/json"
    operation: dict[str, Any] = {
        "operationId": _name_operation(route),
        "summary": route.summary,
        "tags": [route.path.split("/")[1].removesuffix(".json")],
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in names
            ),
            *(_build_query_parameter(each) for each in route.query),
        ],
        "responses": {
            str(route.status): {
                "description": "Success",
                "content": {content_type: _build_media(route)},
            },
            "default": {
                "description": "A problem",
                "content": {
                    "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
                },
            },
        },
        "security": _build_security(route),
    }
    if route.permission is not None:
        operation["x-permission"] = str(route.permission)
    if route.body:
        operation["requestBody"] = {
            "required": any(each.is_required for each in route.body),
            "content": {"application/json": {"schema": _build_body_schema(route.body)}},
        }
    return operation


def _name_operation(route: ApiRoute) -> str:
    words = re.findall(r"\w+", route.path)
    return "_".join([route.method.lower(), *words])


def _build_media(route: ApiRoute) -> dict[str, Any]:
    if route.path == STREAM_PATH:
        return {"schema": {"type": "string"}}
    return {"schema": {"type": "object"}, "example": dict(route.answer)}


def _build_security(route: ApiRoute) -> list[dict[str, list[str]]]:
    needed: dict[str, list[str]] = {} if route.permission is None else {"session": []}
    if route.method != "GET":
        needed["csrf"] = []
    return [needed] if needed else []


def _build_query_parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": "query",
        "required": parameter.is_required,
        "description": parameter.help,
        "schema": {"type": SCHEMA_TYPES[parameter.kind]},
    }


def _build_body_schema(members: Iterable[Parameter]) -> dict[str, Any]:
    members = list(members)
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            each.name: {"type": SCHEMA_TYPES[each.kind], "description": each.help}
            for each in members
        },
    }
    required = [each.name for each in members if each.is_required]
    return {**schema, "required": required} if required else schema
