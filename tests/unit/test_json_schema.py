"""The JSON Schema of a task accepts the payloads that a worker accepts."""

import json
import random
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from graphile_worker import App, Task
from graphile_worker._contracts.document import build_document
from graphile_worker._payloads import encode
from graphile_worker.errors import ConfigurationError
from tests.support.contract_tasks import (
    Access,
    Address,
    Color,
    Level,
    Size,
    build_app,
    fits_worker,
    is_null_object,
    iter_payloads,
)
from tests.support.tiers import random_seed, size

PAYLOADS = size(gate=20, nightly=500)
SEEDS = size(gate=[7], nightly=[7, random_seed()])


def build_schema(document: dict[str, Any], name: str) -> Any:
    return {**document["properties"][name], "$defs": document.get("$defs", {})}


def build_schema_of(annotation: Any) -> tuple[Task[..., Any], Draft202012Validator]:
    app = App()

    def task(value: Any, /) -> None: ...

    task.__annotations__["value"] = annotation
    made = app.task(task)
    return made, Draft202012Validator(build_schema(build_document(app.tasks()), "task"))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_schema_accepts_exactly_the_payloads_that_the_worker_accepts(seed):
    app = build_app()
    document = build_document(app.tasks())
    Draft202012Validator.check_schema(document)
    chance = random.Random(seed)
    counts: dict[bool, int] = {True: 0, False: 0}

    for name, task in app.tasks().items():
        schema = build_schema(document, name)
        validator = Draft202012Validator(schema)
        for payload in iter_payloads(schema, schema["$defs"], PAYLOADS, chance):
            if is_null_object(task, payload):
                continue
            is_accepted = fits_worker(task, payload)
            assert validator.is_valid(payload) == is_accepted, f"{name}: {payload!r} {schema}"
            counts[is_accepted] += 1

    assert len(app.tasks()) >= 60
    # Neither side accepts or rejects nearly everything.
    assert min(counts.values()) > sum(counts.values()) / 5


class Strange(Enum):
    A = "a"

    @classmethod
    def _missing_(cls, value):
        return cls.A if value == "A" else None


@dataclass
class Even:
    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError("not even")


class Lax(pydantic.BaseModel):
    width: int
    at: datetime | None = None


class Row(TypedDict):
    number: int


class Tagged(msgspec.Struct, tag="tagged"):
    width: int


@dataclass(frozen=True)
class Holder:
    items: list[int]


class ManyBits(Flag):
    """More flags with gaps than the schema lists."""

    A, B, C, D, E, F, G, H, I, J = (1 << 2 * number for number in range(10))  # noqa: E741


class TwoNumbers(msgspec.Struct):
    numbers: Annotated[set[int], msgspec.Meta(min_length=2)]


class OneNumber(pydantic.BaseModel):
    numbers: Annotated[set[int], pydantic.Field(max_length=1)]


# The worker accepts these values, and the schema does not: it has one spelling for each type.
ONLY_WORKER: list[tuple[Any, Any]] = [
    (datetime, "20240229T010203Z"),
    (datetime, "2024-02-29 01:02:03+00:00"),
    (datetime, "2024-02-29T01:02Z"),
    (datetime, "2024-02-29T01:02:03+00:53:28"),
    (date, "20240229"),
    (date, "2024-W09-4"),
    (time, "010203"),
    (UUID, "00000000000000000000000000000001"),
    (Decimal, " 1_000 "),
    (Decimal, "inf"),
    (Strange, "A"),
    (Lax, {"width": "7"}),
    (Tagged, {"width": 7}),
    (TwoNumbers, {"numbers": [1, 1]}),
    (OneNumber, {"numbers": [1, 1]}),
]
# The schema accepts these values, and the worker does not: JSON Schema cannot express the rule.
ONLY_SCHEMA: list[tuple[Any, Any]] = [
    (int, 1.0),
    (Decimal, 1.0),
    (Literal[1], 1.0),
    (Level, 1.0),
    (ManyBits, 2),
    # `$` matches before a line break at the end, in the expressions of Python.
    (date, "2024-02-29\n"),
    (datetime, "2024-02-29T01:02:03Z\n"),
    (time, "01:02:03\n"),
    (UUID, "00000000-0000-0000-0000-000000000001\n"),
    (float, 10**400),
    (Even, {"number": 1}),
    (set[Holder], [{"items": [1]}]),
    (Lax, {"width": 7, "at": "soon"}),
]


def test_the_documented_differences_between_schema_and_worker():
    for annotation, value in ONLY_WORKER:
        task, validator = build_schema_of(annotation)
        answers = (fits_worker(task, value), validator.is_valid(value))
        assert answers == (True, False), (annotation, value)
    for annotation, value in ONLY_SCHEMA:
        task, validator = build_schema_of(annotation)
        answers = (fits_worker(task, value), validator.is_valid(value))
        assert answers == (False, True), (annotation, value)


def test_the_worker_reads_null_as_an_object_and_ignores_the_trace_of_an_item():
    app = App()

    @app.task
    def tidy(days: int = 7) -> None: ...

    @app.batch_task
    def move(items: list[Address]) -> None: ...

    document = build_document(app.tasks())
    item = {"street": "Main Street", "number": 1}
    for task, payload, others in (
        (tidy, None, {}),
        (move, [{**item, "_trace": {"traceparent": "00"}}], [item]),
    ):
        validator = Draft202012Validator(build_schema(document, task.identifier))
        assert (fits_worker(task, payload), validator.is_valid(payload)) == (True, False)
        assert (fits_worker(task, others), validator.is_valid(others)) == (True, True)


@pytest.mark.parametrize("limits", [{}, {"min_length": 2}], ids=str)
def test_the_keys_of_a_dict_of_pydantic_have_the_pattern(limits):
    key = Annotated[str, pydantic.Field(pattern="^x", **limits)]
    model = pydantic.create_model("Keyed", kept=(dict[key, int], ...))
    if limits and "minLength" not in str(model.model_json_schema()):
        pytest.skip("this release of pydantic leaves the length of keys out of its schema")
    task, schema = build_schema_of(model)

    for kept in ({}, {"x1": 1}, {"x1": "a"}, {"y1": 1}, {"y1": "a"}, {"x": 1}):
        payload = {"kept": kept}
        assert schema.is_valid(payload) == fits_worker(task, payload), kept


def test_other_keys_of_a_typed_dict_are_part_of_the_schema():
    _, schema = build_schema_of(Row)

    assert schema.schema["$defs"]["Row"]["additionalProperties"] is True


def test_what_python_writes_fits_the_schema():
    values: list[Any] = [
        datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC),
        datetime(2024, 2, 29, 1, 2, 3, 456, tzinfo=timezone(timedelta(hours=-3, minutes=-30))),
        date(1, 1, 1),
        time(1, 2),
        time(1, 2, 3, 4, tzinfo=UTC),
        UUID(int=7),
        *map(Decimal, ("1.10", "1E+5", "-0", "0E-8", "NaN", "-Infinity")),
        Access.READ | Access.WRITE,
        ~Access.READ,
        Color.PAIR,
        {1, 2},
    ]
    for value in values:
        annotation = set[int] if isinstance(value, set) else type(value)
        _, validator = build_schema_of(annotation)
        text = encode(value)
        assert text is not None
        assert validator.is_valid(json.loads(text)), value


def test_classes_are_definitions_with_their_docstrings():
    document = build_document(build_app().tasks())

    assert document["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert list(document["properties"]) == sorted(document["properties"])
    assert document["$defs"]["Size"] == {
        "description": "The size of a picture.",
        "type": "object",
        "properties": {"width": {"type": "integer"}, "height": {"type": "integer"}},
        "required": ["width"],
    }
    assert "description" not in document["$defs"]["Tag"]
    assert {"Address", "Customer", "Cart", "Item", "Page_date"} <= document["$defs"].keys()


def test_two_classes_with_one_name_are_two_definitions():
    first = pydantic.create_model("Size", depth=(int, ...))
    second = pydantic.create_model("Outer", size=(first, ...))
    app = App()

    @app.task
    def measure(size: Size, outer: second) -> None: ...  # type: ignore[valid-type]

    document = build_document(app.tasks())
    validator = Draft202012Validator(build_schema(document, "measure"))

    assert validator.is_valid({"size": {"width": 1}, "outer": {"size": {"depth": 1}}})
    assert not validator.is_valid({"size": {"depth": 1}, "outer": {"size": {"depth": 1}}})
    assert not validator.is_valid({"size": {"width": 1}, "outer": {"size": {"width": 1}}})


def test_models_of_one_name_that_refer_to_different_models_are_two_definitions():
    def build_order(**fields: Any) -> Any:
        part = pydantic.create_model("Part", **fields)
        item = pydantic.create_model("Item", part=(part, ...))
        return pydantic.create_model("Order", item=(item, ...))

    app = App()
    for name, order in (
        ("count", build_order(number=(int, ...))),
        ("label", build_order(text=(str, ...))),
        ("count_again", build_order(number=(int, ...))),
    ):

        def task(order: Any) -> None: ...

        task.__annotations__["order"] = order
        app.task(name=name)(task)
    document = build_document(app.tasks())
    counted, labeled = (
        {"order": {"item": {"part": each}}} for each in ({"number": 1}, {"text": "a"})
    )

    for name, payload, other in (
        ("count", counted, labeled),
        ("label", labeled, counted),
        ("count_again", counted, labeled),
    ):
        validator = Draft202012Validator(build_schema(document, name))
        assert validator.is_valid(payload), name
        assert not validator.is_valid(other), name


def test_patterns_need_nothing_that_the_expressions_of_go_and_rust_lack():
    written = json.dumps(build_document(build_app().tasks()))

    assert '"pattern"' in written
    assert "(?" not in written


def test_an_unresolved_annotation_names_the_task():
    app = App()

    @app.task
    def lost(value: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigurationError, match="lost, parameter value: .*Nowhere"):
        build_document(app.tasks())
