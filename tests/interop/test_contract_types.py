"""The TypeScript of `types`: the compiler accepts right calls of `addJob`, and no wrong ones."""

import dataclasses
import json
import random
from datetime import date
from typing import Any, Literal

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from graphile_worker import App
from graphile_worker._contracts.document import build_document
from graphile_worker._contracts.typescript import write_typescript
from tests.support.contract_tasks import (
    ANNOTATIONS,
    Cart,
    Customer,
    Level,
    Resize,
    Size,
    Tree,
    build_app,
    fits_worker,
    iter_payloads,
)
from tests.support.tiers import size
from tests.support.typescript import find_type_errors, install_packages

pytestmark = pytest.mark.single_version

PAYLOADS = size(gate=40, nightly=100)

HEADER = """\
import type { AddJobFunction } from "graphile-worker";

import type {} from "./tasks.ts";

export async function callAll(addJob: AddJobFunction): Promise<void> {
"""

# The parts of an annotation's payload that TypeScript can tell apart.
WRONG: list[tuple[Any, Any]] = [
    (str, 1),
    (int, "1"),
    (bool, 1),
    (None, 0),
    (list[float], [1, "a"]),
    (tuple[int, str], [1]),
    (tuple[int, str], [1, 2]),
    (tuple[()], [1]),
    (dict[str, float], {"a": "b"}),
    (int | None, "x"),
    (Size, {}),
    (Size, {"width": 1, "depth": 2}),
    (Size, {"width": None}),
    (Level, 2),
    (Literal["a", 1, True, None], "b"),
    (date, 20300131),
    (int | str | list[int], ["a"]),
    (dict[Literal["a", "b"], int], {"c": 1}),
    (Tree, {"name": "a", "children": [{"name": 1}]}),
    (Resize, {"width": 1}),
    (Customer, {"fullName": "Ada", "address": {"street": "Main Street"}}),
    (Cart, {"items": [{"sku": 1}]}),
]


def close(schema: Any) -> Any:
    """Forbid keys that are not listed, as the compiler does for literals."""
    if isinstance(schema, list):
        return [close(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: close(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed


def call(task: str, payload: Any) -> str:
    return f"  await addJob({json.dumps(task)}, {json.dumps(payload)});\n"


def test_the_compiler_checks_the_payload_of_each_task(tmp_path):
    app = build_app()
    document = build_document(app.tasks())
    chance = random.Random(7)
    lines = []
    for name, task in app.tasks().items():
        schema, definitions = document["properties"][name], document["$defs"]
        validator = Draft202012Validator(close({**schema, "$defs": definitions}))
        payloads = [
            each
            for each in iter_payloads(schema, definitions, PAYLOADS, chance)
            if fits_worker(task, each) and validator.is_valid(each)
        ]
        assert payloads, name
        lines += [call(name, each) for each in payloads]
        if "required" in schema:
            lines.append(f"  // @ts-expect-error\n{call(name, {})}")
    for annotation, value in WRONG:
        name = f"annotation_{ANNOTATIONS.index(annotation):02}"
        lines.append(f"  // @ts-expect-error\n{call(name, {'value': value})}")
    install_packages(tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "tasks.ts").write_text(write_typescript(document))
    (tmp_path / "calls.ts").write_text(f"{HEADER}{''.join(lines)}}}\n")

    assert find_type_errors(tmp_path) == []


def test_names_and_docstrings_cannot_leave_their_place(tmp_path):
    names = [
        "string",
        "Tasks",
        "Record",
        "MigrateEvent",
        "class",
        "infer",
        "keyof",
        "unique",
        "\u00e9t\u00e9",
        "a b",
        "a_b",
        "2",
    ]
    classes = [dataclasses.make_dataclass("Renamed", [("value", int)]) for _ in names]
    for name, kind in zip(names, classes, strict=True):
        kind.__name__ = name
        kind.__doc__ = "Ends */ export const broken = 1; /*\u2028\u202e"
    app = App()

    def task(value: Any, **rest: str) -> None:
        """*/ export const broken = 1; /*"""

    for name in ("class", 'a"]: never; } } } export const broken = 1; //', "\u2028\x9b`${x}"):
        task.__annotations__["value"] = tuple.__class_getitem__(
            (*classes, Literal.__getitem__(name))
        )
        app.task(name=name)(task)
    written = write_typescript(build_document(app.tasks()))
    values = [*({"value": 1} for _ in names), "class"]
    install_packages(tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "tasks.ts").write_text(written)
    (tmp_path / "calls.ts").write_text(f"{HEADER}{call('class', {'value': values})}}}\n")

    assert find_type_errors(tmp_path) == []
    # Only one ends each comment, and no character hides or reorders others.
    assert written.count("/**") == written.count("*/") == len(names) + 3
    assert all(each.isprintable() or each == "\n" for each in written)
    assert written.count("\nexport ") == len(names) + 1
