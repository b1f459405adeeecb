"""`types --check`: changes of payloads that break producers are found, and others pass."""

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

from graphile_worker import App
from graphile_worker._contracts.comparison import MAX_PLACES, Change, compare_documents
from graphile_worker._contracts.document import build_document, check_document
from graphile_worker.errors import ConfigurationError
from tests.support.contract_tasks import build_app, fits_worker, is_null_object, iter_payloads
from tests.support.tiers import size

PAYLOADS = size(gate=10, nightly=200)


@dataclass
class Line:
    product: str
    amount: int = 1


@dataclass
class StrictLine:
    product: str
    amount: int


@dataclass
class FreeLine:
    product: str | None
    amount: float = 1
    note: str = ""


class Row(TypedDict):
    id: int
    name: NotRequired[str]


class LongerRow(TypedDict):
    id: int
    name: NotRequired[str]
    note: NotRequired[str]


class FullRow(TypedDict):
    id: int
    name: str


class Pair(NamedTuple):
    x: int
    y: int = 0


class LongerPair(NamedTuple):
    x: int
    y: int = 0
    z: int = 0


class FullPair(NamedTuple):
    x: int
    y: int


@dataclass
class Tree:
    name: str
    children: "list[Tree]" = field(default_factory=list)


@dataclass
class NumberedTree:
    name: int
    children: "list[NumberedTree]" = field(default_factory=list)


@dataclass
class LabeledTree:
    name: str
    label: str = ""
    children: "list[LabeledTree]" = field(default_factory=list)


def model(forbid: bool = False, **limits: Any) -> Any:
    config = pydantic.ConfigDict(extra="forbid" if forbid else "ignore")
    return pydantic.create_model(
        "Model", __config__=config, width=(Annotated[int, pydantic.Field(**limits)], ...)
    )


def struct(kind: Any, *, forbid: bool = False) -> Any:
    return msgspec.defstruct("Struct", [("width", kind)], forbid_unknown_fields=forbid)


def item(kind: Any) -> Any:
    """Build a class that two versions of another class refer to."""
    return pydantic.create_model("Item", a=(kind, ...))


def keyed(kind: Any, pattern: str = "^x") -> Any:
    """Build a class with a dict whose keys have a pattern."""
    key = Annotated[str, pydantic.Field(pattern=pattern)]
    return pydantic.create_model("Keyed", lines=(dict[key, kind], ...))


KEY = Annotated[str, pydantic.Field(pattern="^x")]


def holding(kind: Any, extra: Any = "ignore", **defaults: Any) -> Any:
    fields: dict[str, Any] = {"kept": (kind, ...), **{k: (int, v) for k, v in defaults.items()}}
    return pydantic.create_model("Holder", __config__=pydantic.ConfigDict(extra=extra), **fields)


def json_of(kind: Any) -> Any:
    return pydantic.Json.__class_getitem__(kind)


def listed(*, low: int | None = None) -> Any:
    return holding(Annotated[Literal[1, 2, 3], pydantic.Field(ge=low)])


@dataclass
class Meeting:
    kept: datetime


def build(task: Callable[..., Any] | None, *, is_batch: bool = False) -> dict[str, Any]:
    """Build the document of an app with this task, as a later program reads it from a file."""
    app = App()
    if task is not None:
        (app.batch_task if is_batch else app.task)(name="task")(task)
    document: dict[str, Any] = json.loads(json.dumps(build_document(app.tasks())))
    return document


def build_value(annotation: Any) -> dict[str, Any]:
    def task(value: Any) -> None: ...

    task.__annotations__["value"] = annotation
    return build(task)


def write(schema: Any, **definitions: Any) -> dict[str, Any]:
    """Build a document whose task has this payload."""
    return {"properties": {"task": schema}, "$defs": definitions}


def takes_nothing() -> None: ...
def takes_note(note: str = "") -> None: ...
def takes_text(to: str) -> None: ...
def takes_two(to: str, cc: str) -> None: ...
def takes_optional(to: str, cc: str = "") -> None: ...
def takes_rest(to: str, **rest: Any) -> None: ...
def takes_numbers(to: str, **rest: int) -> None: ...
def takes_cc(to: str, cc: int = 1, **rest: Any) -> None: ...
def takes_numbers_and_cc(to: str, cc: int = 1, **rest: int) -> None: ...
def takes_any(**rest: Any) -> None: ...
def takes_any_and_cc(cc: int = 1, **rest: Any) -> None: ...
def takes_lines(items: list[Line]) -> None: ...
def takes_free_lines(items: list[FreeLine]) -> None: ...
def takes_dict(payload: dict[str, Any], /) -> None: ...
def takes_line(payload: Line, /) -> None: ...


VALUE = "value"
BREAKING: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    # A required parameter, a task and a key are added or removed.
    (build(takes_text), build(takes_two), "cc", "required now"),
    (build(takes_optional), build(takes_two), "cc", "required now"),
    (build(takes_text), build(None), "", "task is removed"),
    (build(takes_text), build(takes_numbers), "*", "only an integer"),
    (build_value(Line), build_value(StrictLine), "value.amount", "required now"),
    (build_value(Row), build_value(FullRow), "value.name", "required now"),
    (build_value(model()), build_value(model(forbid=True)), VALUE, "keys that are not listed"),
    # A type is narrower.
    (build_value(str), build_value(int), VALUE, "text is not accepted any more, only an integer"),
    (build_value(float), build_value(int), VALUE, "only an integer is accepted now"),
    (build_value(int | None), build_value(int), VALUE, "null is not accepted any more"),
    (build_value(str), build_value(datetime), VALUE, "must be the text of a date-time"),
    (build_value(datetime), build_value(date), VALUE, "must be the text of a date"),
    (build_value(Any), build_value(str | int), VALUE, "only text or an integer"),
    (build_value(str), build_value(Literal["a", "b"]), VALUE, 'only "a" or "b" is accepted'),
    (build_value(Literal["a", "b"]), build_value(Literal["a"]), VALUE, '"b" is not accepted'),
    (build_value(list[Line]), build_value(list[StrictLine]), "value[].amount", "required now"),
    (build_value(list[int]), build_value(tuple[int, int]), VALUE, "minItems=2 is new"),
    (build_value(tuple[int, str]), build_value(tuple[int, int]), "value[1]", "only an integer"),
    (build_value(dict[str, float]), build_value(dict[str, int]), "value.*", "only an integer"),
    (build_value(Pair), build_value(FullPair), "value.y", "required now"),
    (build_value(Tree), build_value(NumberedTree), "value.name", "only an integer"),
    (build_value(Decimal), build_value(float), VALUE, "text is not accepted any more"),
    (build_value(model()), build_value(model(le=5)), "value.width", "maximum=5 is new"),
    (build_value(model(le=5)), build_value(model(le=4)), "value.width", "maximum=5 is 4 now"),
    (build_value(model(ge=0)), build_value(model(gt=0)), "value.width", "exclusiveMinimum=0"),
    (build_value(model(lt=6)), build_value(model(le=5)), "value.width", "maximum=5 is new"),
    (build_value(struct(int)), build_value(struct(str)), "value.width", "only text"),
    (build_value(int | str | list[int]), build_value(int | list[str]), "value[]", "only text"),
    # A class changes that only a pattern or a text contains, or a limit that is compared as text.
    (build_value(keyed(item(int))), build_value(keyed(item(str))), "value.lines.*.a", "only text"),
    (build_value(keyed(int)), build_value(keyed(int, "^y")), "value.lines{keys}", '"^y" now'),
    (
        build_value(holding(dict[str, int])),
        build_value(holding(dict[KEY, int])),
        "value.kept{keys}",
        'pattern="^x" is new',
    ),
    (
        write({"type": "object", "patternProperties": {"^x": {"type": "integer"}}}),
        write({"type": "object", "patternProperties": {"^y": {"type": "integer"}}}),
        "^y",
        "are limited now",
    ),
    (
        build_value(holding(json_of(item(int)))),
        build_value(holding(json_of(item(str)))),
        "value.kept{content}.a",
        "only text",
    ),
    (
        write({"contains": {"$ref": "#/$defs/Item"}}, Item={"type": "integer"}),
        write({"contains": {"$ref": "#/$defs/Item"}}, Item={"type": "string"}),
        "",
        "a class in the limit contains changed",
    ),
    # The old task used keys that it did not list.
    (build(takes_rest), build(takes_cc), "cc", "only an integer is accepted now"),
    (build(takes_any), build(takes_any_and_cc), "cc", "only an integer is accepted now"),
    (
        build_value(holding(int, extra="allow")),
        build_value(holding(int, extra="allow", cc=1)),
        "value.cc",
        "only an integer",
    ),
    (
        write({"type": "object", "patternProperties": {"^c": {"type": "string"}}}),
        write({"type": "object", "properties": {"cc": {"type": "integer"}}}),
        "cc",
        "only an integer",
    ),
    (build_value(Row), build_value(LongerRow), "value.note", "only text is accepted now"),
    # A limit beside listed values.
    (build_value(listed()), build_value(listed(low=2)), "value.kept", "the limit ge=2 is new"),
    (write({"enum": [1, "a"]}), write({"enum": [1, "a"], "type": "integer"}), "", '"a" is not'),
    # Both are the text of a date-time. Only the new one has an offset.
    (build_value(holding(datetime)), build_value(Meeting), "value.kept", "spelling of RFC 3339"),
    # Without a type, a value may be an object.
    (
        write({"properties": {"a": {"type": "integer"}}}),
        write({"properties": {"a": {"type": "string"}}}),
        "a",
        "only text",
    ),
    # The form of the payload is another.
    (build(takes_lines), build(takes_lines, is_batch=True), "", "an object is not accepted"),
    (build(takes_dict), build(takes_line), "product", "required now"),
]
COMPATIBLE: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    (build(takes_text), build(takes_optional), "cc", "new optional key"),
    (build(takes_nothing), build(takes_note), "note", "new optional key"),
    (build(takes_two), build(takes_optional), "cc", "optional now"),
    (build(takes_two), build(takes_text), "cc", "its value is ignored"),
    (build(None), build(takes_text), "", "new task"),
    (build(takes_text), build(takes_rest), "", ""),
    (build(takes_numbers), build(takes_rest), "*", "any value is accepted now"),
    (build_value(int), build_value(float), VALUE, "a number with a fraction is accepted now"),
    (build_value(int), build_value(int | None), VALUE, "null is accepted now"),
    (build_value(int), build_value(Decimal), VALUE, "text is accepted now"),
    (build_value(date), build_value(str), VALUE, "need not be the text of a date"),
    (build_value(str | int), build_value(Any), VALUE, "any value is accepted now"),
    (build_value(Literal["a"]), build_value(Literal["a", "b"]), VALUE, '"b" is accepted now'),
    (build_value(Literal["a"]), build_value(str), VALUE, "text is accepted now"),
    (build_value(StrictLine), build_value(Line), "value.amount", "optional now"),
    (build_value(Line), build_value(FreeLine), "value.product", "null is accepted now"),
    (build_value(FullRow), build_value(Row), "value.name", "optional now"),
    (build_value(Pair), build_value(LongerPair), "value.z", "new optional key"),
    (build_value(tuple[int, int]), build_value(list[int]), VALUE, "minItems=2 is removed"),
    (build_value(Tree), build_value(LabeledTree), "value.label", "new optional key"),
    (build_value(model(forbid=True)), build_value(model()), VALUE, "are accepted now"),
    (build_value(model(le=5)), build_value(model(le=6)), "value.width", "maximum=5 is 6 now"),
    (build_value(model(gt=0)), build_value(model(ge=0)), "value.width", "exclusiveMinimum=0"),
    (build_value(model(lt=5)), build_value(model(le=6)), "value.width", "exclusiveMaximum=5"),
    (build_value(model(ge=1)), build_value(model(gt=0)), "value.width", "minimum=1 is removed"),
    (build_value(struct(int)), build_value(struct(int | None)), "value.width", "null"),
    (build_value(dict[str, int]), build_value(dict[str, int | str]), "value.*", "text is accepted"),
    (build_value(list[Line]), build_value(tuple[Line, ...]), "", ""),
    (build_value(keyed(int)), build_value(keyed(float)), "value.lines.*", "with a fraction"),
    (build_value(holding(dict[KEY, int])), build_value(holding(dict[str, int])), "", ""),
    (
        write({"type": "object", "patternProperties": {"^c": {"type": "string"}}}),
        write({"type": "object"}),
        "^c",
        "any value is accepted now",
    ),
    (build(takes_numbers), build(takes_numbers_and_cc), "", ""),
    (build(takes_rest), build(takes_text), "", ""),
    (build_value(listed(low=2)), build_value(listed()), "value.kept", "ge=2 is removed"),
    (build_value(listed(low=2)), build_value(listed(low=2)), "", ""),
    (build_value(Meeting), build_value(holding(datetime)), "", ""),
    (build_value(str | date), build_value(date | str), "", ""),
    # Other spellings of the same values.
    (build_value(Literal["a"] | None), build_value(Literal["a", None]), "", ""),
    (build_value(Literal["a", None]), build_value(Literal["a"] | None), "", ""),
    (build_value(bool), build_value(Literal[True, False]), "", ""),
    (build_value(Literal[True, False]), build_value(bool), "", ""),
    (build_value(bool | None), build_value(Literal[True, None, False]), "", ""),
    (
        build(takes_lines, is_batch=True),
        build(takes_free_lines, is_batch=True),
        "[].note",
        "new optional key",
    ),
]


def find(changes: list[Change], path: str, words: str) -> bool:
    return any(each.path == path and words in each.reason for each in changes)


def test_breaking_changes_are_found_with_their_path_and_reason():
    assert len(BREAKING) >= 20
    for old, new, path, words in BREAKING:
        changes = [each for each in compare_documents(old, new) if each.is_breaking]

        assert find(changes, path, words), (path, words, changes)
        assert {each.task for each in changes} == {"task"}


def test_compatible_changes_are_listed_and_break_nothing():
    assert len(COMPATIBLE) >= 20
    for old, new, path, words in COMPATIBLE:
        changes = compare_documents(old, new)

        assert not any(each.is_breaking for each in changes), changes
        assert find(changes, path, words) or not words, (path, words, changes)


def test_no_change_is_found_where_nothing_changed():
    document = build_document(build_app().tasks())
    again = json.loads(json.dumps(build_document(build_app().tasks())))

    assert compare_documents(document, again) == []


def test_classes_that_refer_to_one_another_many_times_are_compared_once():
    def build_chain(depth: int) -> Any:
        kind: Any = int
        for number in range(depth):
            kind = make_dataclass(f"Link{number}", [("left", kind), ("right", kind)])
        return kind

    # Each link doubles the number of ways to the last one.
    assert compare_documents(build_value(build_chain(40)), build_value(build_chain(40))) == []


def test_a_change_of_a_class_is_listed_for_a_limited_number_of_places():
    def build_chain(kind: Any, depth: int) -> Any:
        for number in range(depth):
            kind = make_dataclass(f"Link{number}", [("left", kind), ("right", kind | None)])
        return kind

    last, changed = make_dataclass("Last", [("a", int)]), make_dataclass("Last", [("a", str)])
    old, new = build_value(build_chain(last, 40)), build_value(build_chain(changed, 40))

    paths = [each.path for each in compare_documents(old, new) if each.is_breaking]

    # The class and the optional class are separate forms.
    assert MAX_PLACES < len(paths) <= 2 * MAX_PLACES
    assert len(set(paths)) == len(paths)


def test_changes_of_many_fields_with_the_same_types_are_all_listed():
    names = [f"field_{number}" for number in range(3 * MAX_PLACES)]
    old = build_value(make_dataclass("Form", [(name, int) for name in names]))
    new = build_value(make_dataclass("Form", [(name, str) for name in names]))

    paths = [each.path for each in compare_documents(old, new) if each.is_breaking]

    assert sorted(paths) == sorted(f"value.{name}" for name in names)


def test_a_change_is_found_in_a_class_that_another_form_of_a_union_contains_too():
    def build_union(kind: Any) -> Any:
        trees: Any = list["Tree"]
        tree: Any = pydantic.create_model("Tree", a=(kind, ...), trees=(trees, ...))
        fits: Any = pydantic.create_model("Fits", tree=(tree | None, ...), x=(int, ...))
        other: Any = pydantic.create_model("Other", tree=(tree, ...), y=(str, ...))
        return pydantic.create_model("Root", first=(fits | other | int, ...), last=(tree, ...))

    changes = compare_documents(build_value(build_union(int)), build_value(build_union(str)))

    assert {each.path for each in changes if each.is_breaking} == {
        "value.first.tree.a",
        "value.first.tree.trees[].a",
        "value.last.a",
    }


def test_changes_in_both_places_of_a_class_are_found():
    old = build_value(tuple[Line, Line])
    new = build_value(tuple[StrictLine, StrictLine])

    paths = [each.path for each in compare_documents(old, new) if each.is_breaking]

    assert paths == ["value[0].amount", "value[1].amount"]


def test_payloads_that_fit_before_a_compatible_change_fit_after_it():
    tasks = build_app().tasks()
    documents = {name: build_document({"task": task}) for name, task in tasks.items()}
    chance = random.Random(7)
    payloads: dict[str, list[Any]] = {}
    for name, document in documents.items():
        schema, definitions = document["properties"]["task"], document.get("$defs", {})
        samples = iter_payloads(schema, definitions, PAYLOADS, chance)
        payloads[name] = [
            each
            for each in samples
            if fits_worker(tasks[name], each) and not is_null_object(tasks[name], each)
        ]
    compatible = 0

    for before, after in itertools.permutations(documents, 2):
        changes = compare_documents(documents[before], documents[after])
        # Payloads with a key that was ignored do not count.
        if any(each.is_breaking or each.reason == "new optional key" for each in changes):
            continue
        compatible += 1
        for payload in payloads[before]:
            assert fits_worker(tasks[after], payload), (before, after, payload, changes)

    assert compatible > 100


def test_a_file_of_another_kind_is_rejected():
    documents: list[Any] = [[], {}, {"$schema": "x", "properties": {}}, {"$schema": True}]
    for document in documents:
        with pytest.raises(ConfigurationError, match="types --json-schema"):
            check_document(document)
