"""Build the JSON Schema (draft 2020-12) of the values that the reader of an annotation accepts."""

import inspect
import json
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date, datetime, time
from decimal import Decimal
from enum import STRICT, Flag
from functools import reduce
from operator import or_
from typing import Any
from uuid import UUID

from graphile_worker._payloads.annotations import (
    AnnotationWalker,
    ObjectForm,
    is_alias,
    list_fields,
)
from graphile_worker._payloads.readers import SCALAR_READERS, Field, read_any
from graphile_worker._payloads.writing import encode_json

# A JSON Schema is an object, or False, which no value fits.
Schema = dict[str, Any] | bool

DEFINITION_PREFIX = "#/$defs/"

# Flags with gaps between their bits are listed, up to this number of values.
MAX_LISTED_FLAGS = 1024

# The patterns are exact, so that a validator which ignores `format` rejects February 30, too. They
# contain the spellings of RFC 3339, without leap seconds, and accept nothing that readers reject.
# [0-9] and not \d, which also matches the digits of other scripts in some languages.
_MONTH_AND_DAY = (
    "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    "|02-(0[1-9]|1[0-9]|2[0-8])"
)
# No look-ahead, which the regular expressions of Go and Rust do not have.
_YEAR = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = "[0-9][0-9](0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00"
_DATE = f"({_YEAR}-({_MONTH_AND_DAY})|({_LEAP_YEAR})-02-29)"
_HOUR_AND_MINUTE = "([01][0-9]|2[0-3]):[0-5][0-9]"
_OFFSET = f"(Z|[+-]{_HOUR_AND_MINUTE})"
_HEX = "[0-9a-fA-F]"

_ANY_SCALAR = {"type": ["string", "number", "boolean", "null"]}

_SCALAR_SCHEMAS: dict[Any, dict[str, Any]] = {
    None: {"type": "null"},
    type(None): {"type": "null"},
    str: {"type": "string"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    float: {"type": "number"},
    Decimal: {
        "type": ["string", "integer"],
        "pattern": (
            r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,9})?$"
            "|^[+-]?(Infinity|NaN)$"
        ),
    },
    datetime: {
        "type": "string",
        "format": "date-time",
        "pattern": rf"^{_DATE}T{_HOUR_AND_MINUTE}:[0-5][0-9](\.[0-9]+)?{_OFFSET}$",
    },
    date: {"type": "string", "format": "date", "pattern": f"^{_DATE}$"},
    # Not the format `time`, which requires an offset.
    time: {
        "type": "string",
        "pattern": rf"^{_HOUR_AND_MINUTE}(:[0-5][0-9](\.[0-9]+)?)?{_OFFSET}?$",
    },
    UUID: {
        "type": "string",
        "format": "uuid",
        "pattern": f"^{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}$",
    },
}


class SchemaBuilder(AnnotationWalker[Schema]):
    """Builds schemas. Classes become definitions, to which other schemas refer.

    Attributes:
        definitions: The schemas of classes by name.
    """

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}
        self._names: dict[tuple[Any, str, bool], str] = {}
        # The names of adopted definitions, by their own name and all that they refer to.
        self._adopted: dict[tuple[str, str], str] = {}
        # Whether the values are items of a set, which must be hashable.
        self._is_in_set = False

    def build(self, annotation: Any) -> Schema:
        name = _find_definition_name(annotation)
        if name is None:
            return self.walk(annotation)
        if not self._is_in_set or is_alias(typing.get_origin(annotation) or annotation):
            return self._refer(annotation, name)
        if not _is_hashable(typing.get_origin(annotation) or annotation):
            return False
        with self._inside_set(False):
            return self._refer(annotation, name)

    def resolve(self, schema: Schema) -> dict[str, Any]:
        """Return the definition to which a schema refers, or else the schema."""
        while isinstance(schema, dict) and "$ref" in schema:
            schema = self.definitions[schema["$ref"].removeprefix(DEFINITION_PREFIX)]
        if isinstance(schema, bool):
            return {} if schema else {"not": {}}
        return schema

    def build_scalar(self, annotation: Any) -> Schema:
        if SCALAR_READERS[annotation] is read_any:
            return dict(_ANY_SCALAR) if self._is_in_set else {}
        return dict(_SCALAR_SCHEMAS[annotation])

    def build_choice(
        self, annotation: Any, choices: Sequence[Any], find: Callable[[Any], Any] | None
    ) -> Schema:
        if isinstance(annotation, type) and issubclass(annotation, Flag):
            return _build_flag_schema(annotation)
        # Values that only `_missing_` accepts are not part of the schema.
        texts = dict.fromkeys(encode_json(choice) for choice in choices)
        return {"enum": [json.loads(text) for text in texts]}

    def build_union(self, members: Sequence[Schema]) -> Schema:
        return _unite(members)

    def build_optional(self, member: Schema) -> Schema:
        return _unite([member, {"type": "null"}])

    def build_array(self, make: Callable[[list[Any]], Any], item: Any) -> Schema:
        if self._is_in_set and make in (list, set):
            return False
        # Items of a set must be hashable, and so must those of a tuple in it.
        with self._inside_set(make in (set, frozenset) or (self._is_in_set and make is tuple)):
            items = self.build(item)
        if items is False:
            return {"type": "array", "maxItems": 0}
        return {"type": "array"} if items == {} else {"type": "array", "items": items}

    def build_tuple(self, items: Sequence[Any]) -> Schema:
        built = [self.build(item) for item in items]
        return False if False in built else _build_tuple_schema(built, len(built))

    def build_dict(self, annotation: Any, key: Any, item: Any) -> Schema:
        if self._is_in_set:
            return False
        schema: dict[str, Any] = {"type": "object"}
        keys, items = self.build(key), self.build(item)
        if isinstance(keys, dict) and "enum" in keys:
            schema["propertyNames"] = keys
        return schema if items == {} else schema | {"additionalProperties": items}

    def build_model(self, model: type) -> Schema:
        adapter = sys.modules["pydantic"].TypeAdapter(model)
        schema = adapter.json_schema(ref_template=f"{DEFINITION_PREFIX}{{model}}")
        schema = _limit_keys(_allow_duplicates(schema))
        return self._adopt(model, schema, schema.pop("$defs", {}))

    def build_struct(self, annotation: Any) -> Schema:
        build = sys.modules["msgspec"].json.schema_components
        (schema,), definitions = build([annotation], ref_template=f"{DEFINITION_PREFIX}{{name}}")
        return self._adopt(annotation, _allow_duplicates(schema), _allow_duplicates(definitions))

    def build_object(
        self, kind: type, form: ObjectForm, fields: Sequence[tuple[Field, Schema]]
    ) -> Schema:
        listed = build_object_schema(
            {field.key: built for field, built in fields},
            [field.key for field, _ in fields if field.is_required],
        )
        if form == "typed dict":
            # The task receives the other keys, too, while objects of a class ignore them.
            listed["additionalProperties"] = True
        schema: Schema = listed
        if form == "named tuple":
            required = sum(field.is_required for field, _ in fields)
            schema = _unite([schema, _build_tuple_schema([each for _, each in fields], required)])
        description = describe(kind.__dict__.get("__doc__"))
        # Without the one that `dataclass` and `NamedTuple` write.
        if description is None or description.startswith(f"{kind.__name__}("):
            return schema
        assert isinstance(schema, dict)
        return {"description": description, **schema}

    def _refer(self, annotation: Any, name: str) -> Schema:
        key = self._get_key(annotation)
        if key not in self._names:
            # Entered first, because a class may contain itself.
            self._names[key] = chosen = self._choose_name(name)
            self.definitions[chosen] = True
            self.definitions[chosen] = self.walk(annotation)
        return {"$ref": f"{DEFINITION_PREFIX}{self._names[key]}"}

    def _get_key(self, annotation: Any) -> tuple[Any, str, bool]:
        return annotation, repr(annotation), self._is_in_set

    def _adopt(
        self, annotation: Any, schema: dict[str, Any], definitions: dict[str, Any]
    ) -> dict[str, Any]:
        """Take over the definitions of another package, under names that are free here."""
        names: dict[str, str] = {}
        own = self._names[self._get_key(annotation)]
        everything = {own: schema, **definitions}
        root = str(schema.get("$ref")).removeprefix(DEFINITION_PREFIX)
        if root in definitions:
            # The class itself, to which the definition of `_refer` belongs.
            names[root] = own
            schema = definitions.pop(root)
        first = root if root in names else own
        self._adopted.setdefault((first, _list_reachable(first, everything)), own)
        for name in definitions:
            # Two classes of one name may differ only in what they refer to.
            key = (name, _list_reachable(name, everything))
            if key not in self._adopted:
                self._adopted[key] = self._choose_name(name)
                self.definitions[self._adopted[key]] = True
            names[name] = self._adopted[key]
        for name, definition in definitions.items():
            self.definitions[names[name]] = _rename_references(definition, names)
        renamed: dict[str, Any] = _rename_references(schema, names)
        return renamed

    @contextmanager
    def _inside_set(self, is_in_set: bool) -> Iterator[None]:
        before, self._is_in_set = self._is_in_set, is_in_set
        try:
            yield
        finally:
            self._is_in_set = before

    def _choose_name(self, name: str) -> str:
        number, chosen = 1, name
        while chosen in self.definitions:
            number += 1
            chosen = f"{name}_{number}"
        return chosen


def build_object_schema(properties: dict[str, Schema], required: Sequence[str]) -> dict[str, Any]:
    """Build the schema of an object, which may have other keys, too."""
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = list(required)
    return schema


def describe(text: str | None) -> str | None:
    """Return the first paragraph of a docstring as one line, or None."""
    paragraph = inspect.cleandoc(text or "").partition("\n\n")[0]
    return " ".join(paragraph.split()) or None


def _find_definition_name(annotation: Any) -> str | None:
    """Return the name for a class with fields or for an alias, or None for other annotations."""
    origin = typing.get_origin(annotation) or annotation
    has_schema = hasattr(origin, "__pydantic_validator__") or hasattr(origin, "__struct_fields__")
    if not (has_schema or is_alias(origin) or list_fields(origin)[0] is not None):
        return None
    arguments = (
        each.__name__ if isinstance(each, type) else repr(each)
        for each in typing.get_args(annotation)
    )
    return re.sub(r"\W+", "_", "_".join([origin.__name__, *arguments])).strip("_")


def _is_hashable(kind: Any) -> bool:
    config = getattr(kind, "__struct_config__", None)
    if config is not None:
        return bool(config.frozen or not config.eq)
    return kind.__hash__ is not None


def _build_flag_schema(kind: type[Flag]) -> dict[str, Any]:
    """Build the schema of flags, which combine, and of which ~ gives a negative number."""
    mask = reduce(or_, (member.value for member in kind.__members__.values()), 0)
    if kind._boundary_ is not STRICT:  # type: ignore[attr-defined]  # not in the stubs
        return {"type": "integer"}
    highest = (1 << mask.bit_length()) - 1
    if mask == highest or 2 << mask.bit_count() > MAX_LISTED_FLAGS:
        return {"type": "integer", "minimum": ~highest, "maximum": highest}
    values = [0]
    for position in range(mask.bit_length()):
        if bit := mask & (1 << position):
            values += [value | bit for value in values]
    # ~ gives a negative number, which lacks the bits of the gaps.
    values = [value - highest - 1 for value in values] + values
    return {"enum": [value for value in values if _is_flag(kind, value)]}


def _is_flag(kind: type[Flag], value: int) -> bool:
    with suppress(ValueError):
        kind(value)
        return True
    return False


def _build_tuple_schema(items: Sequence[Schema], required: int) -> dict[str, Any]:
    if not items:
        return {"type": "array", "maxItems": 0}
    schema: dict[str, Any] = {"type": "array", "prefixItems": list(items)}
    if required:
        schema["minItems"] = required
    return schema | {"maxItems": len(items)}


def _unite(members: Iterable[Schema]) -> Schema:
    """Build the schema of a union. Members with only a type become one."""
    branches: dict[str, dict[str, Any]] = {}
    types: list[str] = []
    for member in members:
        if member is True or member == {}:
            return {}
        for branch in _list_branches(member):
            if branch.keys() == {"type"}:
                found = branch["type"]
                types += [found] if isinstance(found, str) else found
            else:
                # By text, because 1 equals True.
                branches[json.dumps(branch)] = branch
    if "number" in types:
        types = [each for each in types if each != "integer"]
    kept = list(branches.values())
    if types := list(dict.fromkeys(types)):
        kept.append({"type": types if types[1:] else types[0]})
    if not kept:
        return False
    return kept[0] if len(kept) == 1 else {"anyOf": kept}


def _list_branches(schema: Schema) -> list[dict[str, Any]]:
    if isinstance(schema, bool):
        return []
    branches: list[dict[str, Any]] = schema["anyOf"] if schema.keys() == {"anyOf"} else [schema]
    return branches


def _list_reachable(name: str, definitions: Mapping[str, Schema]) -> str:
    """Return a definition and all that it refers to as text."""
    found: dict[str, Schema] = {}
    names = [name]
    while names:
        if (each := names.pop()) in definitions and each not in found:
            found[each] = definitions[each]
            names += list_references(definitions[each])
    return json.dumps(found, sort_keys=True)


def list_references(schema: Any) -> list[str]:
    """Return the names of the definitions to which a schema refers."""
    if isinstance(schema, list):
        return [name for each in schema for name in list_references(each)]
    if not isinstance(schema, dict):
        return []
    names = [name for each in schema.values() for name in list_references(each)]
    if isinstance(reference := schema.get("$ref"), str):
        names.append(reference.removeprefix(DEFINITION_PREFIX))
    return names


def _allow_duplicates(schema: Any) -> Any:
    """Return the schema without uniqueItems: a set drops duplicates and does not reject them."""
    if isinstance(schema, list):
        return [_allow_duplicates(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: _allow_duplicates(value) for key, value in schema.items()}
    # Without duplicates, a set may have fewer items than the least number of them.
    if kept.get("type") == "array" and "minItems" not in kept and kept.get("uniqueItems") is True:
        del kept["uniqueItems"]
    return kept


def _limit_keys(schema: Any) -> Any:
    """Return the schema with the pattern of all keys of a dict where it limits them.

    pydantic writes it as patternProperties alone, which accepts any value of any other key.
    """
    if isinstance(schema, list):
        return [_limit_keys(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: _limit_keys(value) for key, value in schema.items()}
    is_dict = kept.get("type") == "object" and not kept.keys() & {
        "additionalProperties",
        "properties",
    }
    if not is_dict or len(kept.get("patternProperties", {})) != 1:
        return kept
    [(pattern, items)] = kept.pop("patternProperties").items()
    kept["propertyNames"] = {**kept.get("propertyNames", {}), "pattern": pattern}
    return kept if items in ({}, True) else kept | {"additionalProperties": items}


def _rename_references(schema: Any, names: Mapping[str, str]) -> Any:
    if isinstance(schema, list):
        return [_rename_references(each, names) for each in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: _rename_references(value, names) for key, value in schema.items()}
    if isinstance(reference := changed.get("$ref"), str):
        name = reference.removeprefix(DEFINITION_PREFIX)
        changed["$ref"] = f"{DEFINITION_PREFIX}{names.get(name, name)}"
    return changed
