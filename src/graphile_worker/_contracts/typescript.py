"""Write the JSON Schema of tasks as TypeScript, for programs that use Graphile Worker for Node."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from graphile_worker._payloads.json_schema import DEFINITION_PREFIX, Schema

HEADER = """\
// Written by `graphile-worker types --typescript`. Change the Python tasks instead.
"""

_IDENTIFIER = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")

# Names that cannot be declared, that the declarations below use themselves, or that mean something
# else in the namespace of Graphile Worker for Node.
_RESERVED_NAME = re.compile(
    r"""any|bigint|boolean|never|null|number|object|string|symbol|undefined|unknown|void
    |Array|GraphileWorker|Partial|Record
    |Tasks|(Init|Bootstrap|Migrate|PoolGracefulShutdown|PoolForcefulShutdown)Event
    |PoolWorkerPrematureExitEvent|WorkerOptions|Preset|Plugin|WorkerMiddleware|WorkerHooks
    |abstract|as|async|await|break|case|catch|class|const|continue|debugger|declare|default|delete
    |do|else|enum|export|extends|false|finally|for|function|get|if|implements|import|in|infer
    |instanceof|keyof|readonly|unique|asserts|intrinsic
    |interface|let|module|namespace|new|of|package|private|protected|public|return|set|static|super
    |switch|this|throw|true|try|type|typeof|var|while|with|yield""",
    re.VERBOSE,
)

_SCALAR_TYPES = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
}


def write_typescript(document: Mapping[str, Any]) -> str:
    """Write the declarations for a document of `build_document`."""
    return _Writer(document).write()


class _Writer:
    def __init__(self, document: Mapping[str, Any]) -> None:
        self._tasks: Mapping[str, Schema] = document["properties"]
        self._definitions: Mapping[str, Schema] = document.get("$defs", {})
        self._names = _choose_names(self._definitions)

    def write(self) -> str:
        parts = [HEADER, *map(self._write_definition, sorted(self._definitions))]
        parts.append(
            "declare global {\n"
            "  namespace GraphileWorker {\n"
            "    interface Tasks {\n"
            f"{''.join(self._iter_members(sorted(self._tasks.items()), None, '      '))}"
            "    }\n"
            "  }\n"
            "}\n"
        )
        # A file is a module, whose declarations can be global, only if it exports something.
        parts.append("export {};\n")
        return "\n".join(parts)

    def _write_definition(self, name: str) -> str:
        schema = self._definitions[name]
        comment = _write_comment(schema, "")
        return f"{comment}export type {self._names[name]} = {self._write(schema, '')};\n"

    def _write(self, schema: Schema, indent: str) -> str:
        """Write the type of a schema. What TypeScript cannot express becomes `unknown`."""
        if isinstance(schema, bool):
            return "unknown" if schema else "never"
        if isinstance(reference := schema.get("$ref"), str):
            return self._names.get(reference.removeprefix(DEFINITION_PREFIX), "unknown")
        if "enum" in schema:
            return _join("|", map(_write_literal, schema["enum"]))
        if "const" in schema:
            return _write_literal(schema["const"])
        for keyword, operator in (("anyOf", "|"), ("oneOf", "|"), ("allOf", "&")):
            if keyword in schema:
                return _join(operator, (self._write(each, indent) for each in schema[keyword]))
        kinds = schema.get("type", "unknown")
        kinds = [kinds] if isinstance(kinds, str) else kinds
        return _join("|", (self._write_kind(kind, schema, indent) for kind in kinds))

    def _write_kind(self, kind: str, schema: dict[str, Any], indent: str) -> str:
        if kind == "array":
            return self._write_array(schema, indent)
        if kind == "object":
            return self._write_object(schema, indent)
        return _SCALAR_TYPES.get(kind, "unknown")

    def _write_array(self, schema: dict[str, Any], indent: str) -> str:
        items = schema.get("items", True)
        if schema.get("maxItems") == 0:
            return "[]"
        if "prefixItems" not in schema:
            return f"{_group(self._write(items, indent))}[]"
        prefix = schema["prefixItems"]
        required = schema.get("minItems", 0)
        types = [
            written if position < required else f"{_group(written)}?"
            for position, written in enumerate(self._write(each, indent) for each in prefix)
        ]
        if items is not False and schema.get("maxItems", len(prefix) + 1) > len(prefix):
            types.append(f"...{_group(self._write(items, indent))}[]")
        return f"[{', '.join(types)}]"

    def _write_object(self, schema: dict[str, Any], indent: str) -> str:
        properties, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
        if properties:
            members = self._iter_members(
                properties.items(), schema.get("required", ()), f"{indent}  "
            )
            # An index signature must suit all members, so that it cannot be more exact.
            is_open = schema.get("additionalProperties", False) is not False
            index = f"{indent}  [key: string]: unknown;\n" if is_open else ""
            return f"{{\n{''.join(members)}{index}{indent}}}"
        if "properties" in schema and isinstance(rest, bool):
            return "Record<string, unknown>" if rest else "Record<string, never>"
        names = schema.get("propertyNames")
        if isinstance(names, dict) and "enum" in names:
            keys = self._write(names, indent)
            return f"Partial<Record<{keys}, {self._write(rest, indent)}>>"
        return f"Record<string, {self._write(rest, indent)}>"

    def _iter_members(
        self,
        members: Iterable[tuple[str, Schema]],
        required: Iterable[str] | None,
        indent: str,
    ) -> Iterator[str]:
        """Write the members of an object. If `required` is None, all are."""
        for name, schema in members:
            is_required = required is None or name in required
            yield (
                f"{_write_comment(schema, indent)}{indent}{_write_key(name)}"
                f"{'' if is_required else '?'}: {self._write(schema, indent)};\n"
            )


def _choose_names(definitions: Iterable[str]) -> dict[str, str]:
    """Choose a separate TypeScript name for each definition."""
    names: dict[str, str] = {}
    for definition in sorted(definitions):
        base = re.sub(r"[^A-Za-z0-9_$]", "_", definition)
        if not _IDENTIFIER.fullmatch(base) or _RESERVED_NAME.fullmatch(base):
            base = f"_{base}"
        name, number = base, 1
        while name in names.values():
            number += 1
            name = f"{base}_{number}"
        names[definition] = name
    return names


def _join(operator: str, types: Iterable[str]) -> str:
    distinct = list(dict.fromkeys(types))
    if operator == "|" and "unknown" in distinct:
        return "unknown"
    if operator == "&" and distinct[1:]:
        distinct = list(map(_group, distinct))
    return f" {operator} ".join(distinct) or "never"


def _group(written: str) -> str:
    """Put a union or an intersection in parentheses."""
    is_one = re.fullmatch(r'[\w$.]+|"([^"\\]|\\.)*"|\{[^{}]*\}|\[[^][]*\]', written) is not None
    return written if is_one else f"({written})"


def _write_literal(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_write_literal, value))}]"
    if isinstance(value, dict):
        members = (f"{_write_key(key)}: {_write_literal(each)}" for key, each in value.items())
        return f"{{ {'; '.join(members)} }}"
    return json.dumps(value)


def _write_key(name: str) -> str:
    return name if _IDENTIFIER.fullmatch(name) else _write_literal(name)


def _write_comment(schema: Schema, indent: str) -> str:
    description = schema.get("description") if isinstance(schema, dict) else None
    if not isinstance(description, str):
        return ""
    # The comment ends only where this function ends it, and has one line.
    text = " ".join(description.split()).replace("*/", "*\\/")
    printable = "".join(each if each.isprintable() else " " for each in text)
    return f"{indent}/** {printable} */\n"
