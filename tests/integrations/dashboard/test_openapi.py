"""The OpenAPI document describes every route, and only what exists."""

import re
from typing import Any

from graphile_worker.contrib.dashboard._dashboard import ALL_ROUTES
from graphile_worker.contrib.dashboard._openapi import build_document
from graphile_worker.contrib.dashboard._users import Permission
from tests.support.dashboard import Caller

TYPES = {"string", "integer", "number", "boolean", "array", "object"}


def iterate_operations(document: dict[str, Any]) -> Any:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield path, method, operation


def test_the_document_is_served(admin: Caller) -> None:
    document = admin.get("openapi.json")
    assert document == build_document(ALL_ROUTES)
    # Relative to the address of the document.
    assert document["servers"] == [{"url": "."}]


def test_the_document_has_each_route_once() -> None:
    document = build_document(ALL_ROUTES)
    described = {(method.upper(), path) for path, method, _ in iterate_operations(document)}
    assert described == {(route.method, route.path) for route in ALL_ROUTES}
    assert len(ALL_ROUTES) == len(described)
    ids = [operation["operationId"] for _, _, operation in iterate_operations(document)]
    assert len(ids) == len(set(ids))


def test_operations_are_complete() -> None:
    document = build_document(ALL_ROUTES)
    assert document["openapi"] == "3.1.0"
    assert {"title", "version"} <= document["info"].keys()
    schemes = document["components"]["securitySchemes"]
    for path, method, operation in iterate_operations(document):
        place = f"{method} {path}"
        assert method in ("get", "post", "delete"), place
        assert operation["summary"].endswith("."), place
        parameters = operation["parameters"]
        in_path = {each["name"] for each in parameters if each["in"] == "path"}
        assert in_path == set(re.findall(r"\{(\w+)\}", path)), place
        assert len(parameters) == len({(each["in"], each["name"]) for each in parameters}), place
        for each in parameters:
            assert each["in"] in ("path", "query"), place
            assert each["schema"]["type"] in TYPES, place
            assert each["required"] or each["in"] == "query", place
        [success] = [each for each in operation["responses"] if each != "default"]
        assert re.fullmatch("2[0-9][0-9]", success), place
        assert all("description" in each for each in operation["responses"].values()), place
        for needed in operation["security"]:
            assert needed.keys() <= schemes.keys(), place
        if "requestBody" in operation:
            assert method == "post", place
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            for name, member in schema["properties"].items():
                assert member["type"] in TYPES, (place, name)
                assert member["description"], (place, name)
            assert set(schema.get("required", ())) <= schema["properties"].keys(), place


def test_every_permission_has_a_route() -> None:
    used = {route.permission for route in ALL_ROUTES} - {None}
    # These depend on the action that a bulk request names.
    by_action = {Permission.RETRY, Permission.RESCHEDULE, Permission.FAIL, Permission.DELETE}
    assert used | by_action == set(Permission)
