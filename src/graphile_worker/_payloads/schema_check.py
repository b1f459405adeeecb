"""Check payloads by a JSON Schema, with the package jsonschema."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from graphile_worker._payloads.readers import Mismatch
from graphile_worker.errors import ConfigurationError

# Keywords whose next step in the path of a schema is a name and not a keyword.
_NAMED_PARTS = frozenset({"dependencies", "dependentSchemas", "patternProperties", "properties"})
_PARTS_OF_OTHER_KEYS = frozenset({"additionalProperties", "unevaluatedProperties"})

# The address of the document, to which a fragment refers.
_DOCUMENT_URI = "urn:graphile-worker:schema"


def build_schema_check(source: Mapping[str, Any] | Path | str, where: str) -> Callable[[Any], None]:
    """Build a function that raises Mismatch if a payload does not fit a JSON Schema.

    The source is a schema or the path of its file. A fragment selects a part of the file, for
    example `tasks.json#/properties/send_email`.

    Raises:
        ConfigurationError: The schema is not valid, or jsonschema is not installed.
    """
    try:
        import jsonschema  # type: ignore[import-untyped]  # it has no type hints
        import referencing.jsonschema
    except ImportError:
        raise ConfigurationError(
            f"{where}: a JSON Schema needs the package jsonschema. Install "
            "graphile-worker[jsonschema]."
        ) from None
    document, fragment = _read_source(source, where)
    if not isinstance(document, dict | bool):
        raise ConfigurationError(f"{where}: a JSON Schema is an object or a boolean")
    kind = jsonschema.validators.validator_for(document, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(document)
        resource = referencing.Resource.from_contents(
            document, default_specification=referencing.jsonschema.DRAFT202012
        )
        # With a separate registry, the package never downloads what a schema refers to.
        registry = referencing.Registry().with_resource(_DOCUMENT_URI, resource)
        reference = f"{_DOCUMENT_URI}#{fragment}"
        registry.resolver().lookup(reference)
    except jsonschema.SchemaError as error:
        raise ConfigurationError(f"{where}: not a JSON Schema: {error.message}") from None
    except referencing.exceptions.Unresolvable as error:
        raise ConfigurationError(f"{where}: the schema has no {error.ref}") from None
    validator = kind({"$ref": reference}, registry=registry)

    def check(payload: Any) -> None:
        try:
            error = jsonschema.exceptions.best_match(validator.iter_errors(payload))
        except referencing.exceptions.Unresolvable as missing:
            raise ConfigurationError(f"{where}: the schema has no {missing.ref}") from None
        if error is not None:
            raise _build_mismatch(error)

    return check


def _read_source(source: Mapping[str, Any] | Path | str, where: str) -> tuple[Any, str]:
    """Return the document and the fragment."""
    if isinstance(source, Mapping):
        return dict(source), ""
    if not isinstance(source, str | Path):
        raise ConfigurationError(
            f"{where}: schema must be a JSON Schema as a dict, or the path of its file"
        )
    path, _, fragment = str(source).partition("#")
    try:
        return json.loads(Path(path).read_text(encoding="utf-8")), fragment
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{where}: cannot read the schema {path}: {error}") from None


def _build_mismatch(error: Any) -> Mismatch:
    """Build the mismatch of an error without its message, which quotes the payload."""
    steps, limit = _list_steps(error), error.validator
    if limit == "required":
        if isinstance(error.validator_value, list):  # not in draft 3
            steps.append(next(name for name in error.validator_value if name not in error.instance))
        reason = "missing"
    elif limit is None:
        reason = "its schema does not allow any value"
    elif limit in ("additionalProperties", "unevaluatedProperties"):
        reason = "its schema does not allow one of the keys"
    else:
        reason = f"does not fit its schema: {limit} {json.dumps(error.validator_value)[:200]}"
    mismatch = Mismatch("", reason)
    for step in reversed(steps):
        mismatch.prepend_path(step)
    return mismatch


def _list_steps(error: Any) -> list[str]:
    """Return the path of an error. Keys that the schema does not list are data, and not quoted."""
    keys = [step for step in error.absolute_path if isinstance(step, str)]
    is_listed = list(_iter_listed(error.absolute_schema_path))
    if len(is_listed) != len(keys):
        is_listed = [False] * len(keys)
    listed = iter(is_listed)
    return [
        f"[{step}]" if isinstance(step, int) else step if next(listed) else "[...]"
        for step in error.absolute_path
    ]


def _iter_listed(schema_path: Sequence[str | int]) -> Iterator[bool]:
    """Yield for each step into an object whether the schema lists its key."""
    # The last step is the limit itself.
    keywords = iter([*schema_path][:-1])
    for keyword in keywords:
        name = next(keywords, None) if keyword in _NAMED_PARTS else None
        if keyword in _PARTS_OF_OTHER_KEYS:
            yield False
        elif name is not None and keyword in ("patternProperties", "properties"):
            yield keyword == "properties"
