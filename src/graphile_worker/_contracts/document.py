"""Build one JSON Schema for all tasks: an object with a payload under the name of each task."""

import inspect
from collections.abc import Mapping
from typing import Any

from graphile_worker._payloads.json_schema import Schema, SchemaBuilder, describe
from graphile_worker.errors import ConfigurationError
from graphile_worker.tasks import Task

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def build_document(tasks: Mapping[str, Task[..., Any]]) -> dict[str, Any]:
    """Build the JSON Schema of the payloads of these tasks.

    Raises:
        ConfigurationError: An annotation cannot be resolved.
    """
    builder = SchemaBuilder()
    schemas = {name: _build_task_schema(task, builder) for name, task in sorted(tasks.items())}
    document = {"$schema": SCHEMA_DIALECT, "type": "object", "properties": schemas}
    if builder.definitions:
        document["$defs"] = dict(sorted(builder.definitions.items()))
    return document


def check_document(document: Any) -> dict[str, Any]:
    """Return the document if `build_document` may have built it.

    Raises:
        ConfigurationError: It is another kind of document.
    """
    is_object = isinstance(document, dict) and document.get("$schema") == SCHEMA_DIALECT
    if not is_object or not isinstance(document.get("properties"), dict):
        raise ConfigurationError("it was not written by graphile-worker types --json-schema")
    checked: dict[str, Any] = document
    return checked


def _build_task_schema(task: Task[..., Any], builder: SchemaBuilder) -> Schema:
    schema = task.signature.build_payload_schema(builder)
    description = describe(inspect.getdoc(task.fn))
    if description is None or isinstance(schema, bool):
        return schema
    return {"description": description, **schema}
