"""JSON values are read by the annotations of a task, or rejected."""

import collections.abc as abc
import dataclasses
import json
import pickle
import subprocess
import sys
import typing
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from inspect import Parameter
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    Required,
    TypedDict,
    TypeVar,
    Union,
)
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphile_worker._payloads import Mismatch, build_reader, encode
from graphile_worker.errors import ConfigurationError, JobSpecError
from graphile_worker.tasks.signatures import Signature

SECRET = "s3cr3t-canary"

T = TypeVar("T")
Number = TypeVar("Number", bound=int)
Either = TypeVar("Either", int, str)
UserId = NewType("UserId", int)


class Colour(Enum):
    RED = "red"
    PAIR = (1, 2)
    HALF = 0.5
    TWO = 2.0


class Level(IntEnum):
    HIGH = 3


class Word(StrEnum):
    YES = "yes"
    NO = "no"


class Rights(Flag):
    READ = 1
    WRITE = 2


class Loose(Enum):
    A = "a"

    @classmethod
    def _missing_(cls, value):
        return cls.A if value == "A" else None


class Due(Enum):
    FIRST = date(2024, 1, 1)


@dataclass
class Size:
    width: int
    height: int = 10


@dataclass(frozen=True, slots=True)
class Picture:
    path: str
    sizes: list[Size] = field(default_factory=list)
    _: KW_ONLY
    at: datetime | None = None
    shape: ClassVar[str] = "square"
    area: int = field(default=0, init=False)


@dataclass
class Tree:
    name: str
    children: "list[Tree]" = field(default_factory=list)


@dataclass
class Page(Generic[T]):
    items: list[T]
    first: T
    next: "Page[T] | None" = None
    note: "Annotated[T | None, 'any']" = None


@dataclass
class Even:
    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError("not even")


@dataclass
class Seeded:
    seed: InitVar[int]
    value: int = 0

    def __post_init__(self, seed: int) -> None:
        self.value += seed


class Resize(TypedDict):
    path: str
    width: NotRequired[int]


class Patch(TypedDict, total=False):
    id: Required[Annotated[UUID, "key"]]
    at: "NotRequired[date]"
    size: Size


class Quoted(TypedDict):
    path: str
    width: "NotRequired[int]"


class Point(NamedTuple):
    x: float
    y: float
    label: str = ""


Bare = namedtuple("Bare", ["a", "b"])

UTC_TEXT = "2024-02-29T01:02:03+00:00"
LEAP_DAY = datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC)
KEY = UUID(int=1)


def value_and_type(value: Any) -> Any:
    """The value with its types, since 1 == True == 1.0."""
    if isinstance(value, list | tuple):
        return type(value), [value_and_type(item) for item in value]
    if isinstance(value, dict):
        return {key: value_and_type(item) for key, item in value.items()}
    return type(value), value


def read_mismatch(annotation: Any, value: Any) -> Mismatch:
    with pytest.raises(Mismatch) as caught:
        build_reader(annotation)(value)
    return caught.value


def annotation_error(annotation: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        build_reader(annotation)
    return str(caught.value)


FITS: list[tuple[Any, Any, Any]] = [
    (str, "x", "x"),
    (int, 3, 3),
    (bool, True, True),
    (float, 1.5, 1.5),
    (float, 3, 3.0),
    (None, None, None),
    (type(None), None, None),
    (Any, [1], [1]),
    (object, {"a": 1}, {"a": 1}),
    (Parameter.empty, "x", "x"),
    (datetime, UTC_TEXT, LEAP_DAY),
    (datetime, "2024-02-29T01:02:03Z", LEAP_DAY),
    (datetime, "2024-02-29T01:02:03.000Z", LEAP_DAY),
    (datetime, "2024-02-28T22:02:03-03:00", LEAP_DAY),
    (date, "2024-02-29", date(2024, 2, 29)),
    (time, "01:02:03", time(1, 2, 3)),
    (time, "01:02:03+00:00", time(1, 2, 3, tzinfo=UTC)),
    (UUID, str(KEY), KEY),
    (Decimal, "1.10", Decimal("1.10")),
    (Decimal, 12, Decimal(12)),
    (Colour, "red", Colour.RED),
    (Colour, [1, 2], Colour.PAIR),
    (Colour, 0.5, Colour.HALF),
    (Colour, 2, Colour.TWO),
    (Colour, 2.0, Colour.TWO),
    (Level, 3, Level.HIGH),
    (Word, "yes", Word.YES),
    (Rights, 3, Rights.READ | Rights.WRITE),
    (Rights, 0, Rights(0)),
    (Loose, "A", Loose.A),
    (Due, "2024-01-01", Due.FIRST),
    (Literal["a", 1, True, None], "a", "a"),
    (Literal["a", 1, True, None], 1, 1),
    (Literal["a", 1, True, None], True, True),
    (Literal["a", 1, True, None], None, None),
    (Literal[Word.YES], "yes", Word.YES),
]


@pytest.mark.feature("F116")
@pytest.mark.parametrize(("annotation", "value", "result"), FITS)
def test_a_value_is_read_as_its_annotation_asks(annotation, value, result):
    assert value_and_type(build_reader(annotation)(value)) == value_and_type(result)


CONTAINERS: list[tuple[Any, Any, Any]] = [
    (list, [1, "a"], [1, "a"]),
    (list[float], [1, 2.5], [1.0, 2.5]),
    (typing.List, [1], [1]),  # noqa: UP006
    (abc.Sequence[date], ["2024-01-01"], [date(2024, 1, 1)]),
    (abc.Iterable[int], [1], [1]),
    (abc.Collection[int], [1], [1]),
    (abc.MutableSequence[int], [1], [1]),
    (tuple, [1, "a"], (1, "a")),
    (typing.Tuple, [1, "a"], (1, "a")),  # noqa: UP006
    (tuple[int, ...], [1, 2], (1, 2)),
    (tuple[int, str], [1, "a"], (1, "a")),
    (tuple[()], [], ()),
    (set[int], [1, 1, 2], {1, 2}),
    (set, [1], {1}),
    (abc.Set[UUID], [str(KEY)], {KEY}),
    (frozenset[str], ["a"], frozenset("a")),
    (dict, {"a": 1}, {"a": 1}),
    (dict[str, float], {"a": 1}, {"a": 1.0}),
    (abc.Mapping[str, Any], {"a": [1]}, {"a": [1]}),
    (dict[Any, int], {"a": 1}, {"a": 1}),
    (dict[Literal["a", "b"], int], {"a": 1}, {"a": 1}),
    (dict[Word, int], {"yes": 1}, {Word.YES: 1}),
    (list[tuple[int, set[str]]], [[1, ["a"]]], [(1, {"a"})]),
]


@pytest.mark.feature("F116")
@pytest.mark.parametrize(("annotation", "value", "result"), CONTAINERS)
def test_arrays_and_objects_are_read_as_containers(annotation, value, result):
    assert value_and_type(build_reader(annotation)(value)) == value_and_type(result)


UNIONS: list[tuple[Any, Any, Any]] = [
    (int | None, None, None),
    (int | None, 3, 3),
    (Optional[str], "x", "x"),  # noqa: UP045
    (int | str, "5", "5"),
    (int | str, 5, 5),
    (str | int, 5, 5),
    (bool | int, 1, 1),
    (int | bool, True, True),
    (float | int, 3, 3),
    (float | int, 3.5, 3.5),
    (Decimal | int, 3, 3),
    (Decimal | int, "3", Decimal(3)),
    (Decimal | str, "1.5", Decimal("1.5")),
    (Decimal | str, "dear", "dear"),
    (datetime | str, UTC_TEXT, LEAP_DAY),
    (datetime | str, "soon", "soon"),
    (str | datetime, UTC_TEXT, UTC_TEXT),
    (date | datetime, UTC_TEXT, LEAP_DAY),
    (Union[Size, str], {"width": 1}, Size(1)),  # noqa: UP007
    (Even | Size | None, {"number": 1, "width": 2}, Size(2)),
    (list[int] | list[str], ["a"], ["a"]),
    (int | list[int] | None, [1], [1]),
]


@pytest.mark.feature("F116")
@pytest.mark.parametrize(("annotation", "value", "result"), UNIONS)
def test_the_first_member_of_a_union_that_fits_is_taken(annotation, value, result):
    assert value_and_type(build_reader(annotation)(value)) == value_and_type(result)


def test_equal_unions_keep_their_order():
    assert list[date | str] == list[str | date]

    first = build_reader(list[date | str])(["2024-01-01"])
    second = build_reader(list[str | date])(["2024-01-01"])

    assert first == [date(2024, 1, 1)]
    assert second == ["2024-01-01"]


@pytest.mark.parametrize(
    ("annotation", "value", "result"),
    [
        (Annotated[int, "metadata"], 3, 3),
        (Annotated[list[date], ["unhashable"]], ["2024-01-01"], [date(2024, 1, 1)]),
        (Final[int], 3, 3),
        (UserId, 3, 3),
        (list[UserId], [3], [3]),
        (T, "anything", "anything"),
        (Number, 3, 3),
        (Either, "x", "x"),
    ],
)
def test_a_wrapped_annotation_reads_as_the_inner_one(annotation, value, result):
    assert build_reader(annotation)(value) == result


@pytest.mark.parametrize("annotation", [UserId, Number, Annotated[int, 0], Final[int]])
def test_a_wrapped_annotation_rejects_as_the_inner_one(annotation):
    assert str(read_mismatch(annotation, "3")) == "expected int, got str"


def test_type_aliases_are_followed():
    extensions = pytest.importorskip("typing_extensions")
    pair = extensions.TypeAliasType(
        "pair",
        tuple[T, T],  # type: ignore[valid-type]
        type_params=(T,),
    )
    names = extensions.TypeAliasType("names", list[str])

    assert build_reader(names)(["a"]) == ["a"]
    assert build_reader(pair[date])(["2024-01-01"] * 2) == (date(2024, 1, 1),) * 2
    assert str(read_mismatch(names, [1])) == "[0]: expected str, got int"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the type statement came with 3.12")
def test_a_type_statement_may_be_recursive():
    scope: dict[str, Any] = {}
    exec("type Nested = int | list[Nested]\ntype Pair[X] = tuple[X, X]", scope)

    assert build_reader(scope["Nested"])([1, [2, [3]]]) == [1, [2, [3]]]
    assert build_reader(scope["Pair"][float])([1, 2]) == (1.0, 2.0)


OBJECTS: list[tuple[Any, Any, Any]] = [
    (Size, {"width": 1}, Size(1, 10)),
    (Size, {"width": 1, "height": 2, "depth": 3}, Size(1, 2)),
    (
        Picture,
        {"path": "p", "sizes": [{"width": 1}], "at": UTC_TEXT, "area": 9, "shape": "round"},
        Picture("p", [Size(1)], at=LEAP_DAY),
    ),
    (Tree, {"name": "a", "children": [{"name": "b"}]}, Tree("a", [Tree("b")])),
    (Seeded, {"seed": 2, "value": 1}, Seeded(2, 1)),
    (Page[int], {"items": [1], "first": 2}, Page([1], 2)),
    (
        Page[date],
        {"items": [], "first": "2024-01-01", "next": {"items": [], "first": "2024-01-02"}},
        Page([], date(2024, 1, 1), Page([], date(2024, 1, 2))),
    ),
    (Page, {"items": ["any"], "first": 1}, Page(["any"], 1)),
    (Resize, {"path": "p"}, {"path": "p"}),
    (Resize, {"path": "p", "width": 1, "_cron": {}}, {"path": "p", "width": 1, "_cron": {}}),
    (Quoted, {"path": "p"}, {"path": "p"}),
    (
        Patch,
        {"id": str(KEY), "at": "2024-01-01", "size": {"width": 1}},
        {"id": KEY, "at": date(2024, 1, 1), "size": Size(1)},
    ),
    (Point, [1, 2], Point(1.0, 2.0)),
    (Point, [1, 2, "here"], Point(1.0, 2.0, "here")),
    (Point, {"x": 1, "y": 2, "z": 3}, Point(1.0, 2.0)),
    (Bare, [1, "b"], Bare(1, "b")),
]


@pytest.mark.feature("F115", "F116")
@pytest.mark.parametrize(("annotation", "value", "result"), OBJECTS)
def test_objects_are_read_as_classes_and_unknown_keys_are_ignored(annotation, value, result):
    assert value_and_type(build_reader(annotation)(value)) == value_and_type(result)


def test_the_typed_dict_of_typing_extensions_reads_like_that_of_typing():
    extensions = pytest.importorskip("typing_extensions")
    kind = extensions.TypedDict(
        "kind", {"at": extensions.ReadOnly[date], "width": extensions.NotRequired[int]}
    )

    assert build_reader(kind)({"at": "2024-01-01"}) == {"at": date(2024, 1, 1)}
    assert str(read_mismatch(kind, {"width": 1})) == "at: missing"


def test_attrs_classes_are_read_by_the_names_of_their_attributes():
    attrs = pytest.importorskip("attrs")
    kind = attrs.make_class(
        "kind",
        {
            "_width": attrs.field(type=float),
            "tags": attrs.field(type=set[str], factory=set),
            "count": attrs.field(type=int, converter=int, default=0),
            "made": attrs.field(type=int, init=False, default=7),
            "small": attrs.field(type=int, default=1, validator=attrs.validators.lt(5)),
        },
    )

    read = build_reader(kind)({"_width": 1, "tags": ["a"], "count": "12", "made": 8, "other": 0})

    assert read == kind(width=1.0, tags={"a"}, count=12)
    assert str(read_mismatch(kind, {"_width": "1"})) == "_width: expected float, got str"
    assert str(read_mismatch(kind, {})) == "_width: missing"
    assert read_mismatch(kind, {"_width": 1, "small": 9}).reason.startswith(
        "kind: 'small' must be < 5"
    )


MISMATCHES: list[tuple[Any, Any, str]] = [
    (str, 1, "expected str, got int"),
    (str, None, "expected str, got None"),
    (None, 0, "expected None, got int"),
    (int, True, "expected int, got bool"),
    (int, 1.0, "expected int, got float"),
    (int, "1", "expected int, got str"),
    (bool, 1, "expected bool, got int"),
    (float, True, "expected float, got bool"),
    (float, "1", "expected float, got str"),
    (float, 10**400, "too large for a float"),
    (datetime, 1704067200, "expected datetime as text, got int"),
    (datetime, "2024-01-01T00:00:00", "naive datetime: expected one with an offset"),
    (datetime, "2024-01-01", "naive datetime: expected one with an offset"),
    (datetime, "soon", "not the text of a datetime"),
    (date, UTC_TEXT, "not the text of a date"),
    (time, "25:00", "not the text of a time"),
    (UUID, "1", "not the text of a UUID"),
    (UUID, 1, "expected UUID as text, got int"),
    (Decimal, 1.5, "expected Decimal as text, got float"),
    (Decimal, True, "expected Decimal as text, got bool"),
    (Decimal, "dear", "not the text of a Decimal"),
    (Word, "maybe", 'expected one of "yes", "no"'),
    (Level, True, "expected one of 3"),
    (Level, "3", "expected one of 3"),
    (Level, 3.0, "expected one of 3"),
    (Rights, 8, "expected one of 1, 2"),
    (Rights, True, "expected one of 1, 2"),
    (Rights, "READ", "expected one of 1, 2"),
    (Literal["a", 1], True, 'expected one of "a", 1'),
    (Literal["a", 1], [["a"]], 'expected one of "a", 1'),
    (Literal[0, 1, 2, 3, 4, 5, 6, 7, 8], 9, "expected one of 0, 1, 2, 3, 4, 5, 6, 7, ..."),
    (list, {}, "expected list, got dict"),
    (list[int], [1, "a"], "[1]: expected int, got str"),
    (list[list[int]], [[], [1, None]], "[1][1]: expected int, got None"),
    (tuple[int, str], [1], "expected 2 items, got 1"),
    (tuple[int, str], [1, 2], "[1]: expected str, got int"),
    (tuple[int, str], "ab", "expected list, got str"),
    (set, [[]], "items that a set cannot hold"),
    (frozenset[list[int]], [[]], "items that a frozenset cannot hold"),
    (dict, [], "expected dict, got list"),
    (dict[str, int], {"a": "b"}, "[...]: expected int, got str"),
    (dict[Literal["a"], int], {"b": 1}, '[...]: expected one of "a"'),
    (int | None, "a", "expected int, got str"),
    (int | str, [], "expected int, got list; or expected str, got list"),
    (int | datetime, "soon", "not the text of a datetime"),
    (Size | Point, {}, "width: missing; or x: missing"),
    (Size, [], "expected an object (Size), got list"),
    (Size, {}, "width: missing"),
    (Size, {"width": None}, "width: expected int, got None"),
    (Picture, {"path": "p", "sizes": [{"width": 1}, {}]}, "sizes[1].width: missing"),
    (Tree, {"name": "a", "children": [{}]}, "children[0].name: missing"),
    (Page[int], {"items": ["a"], "first": 1}, "items[0]: expected int, got str"),
    (Page[int], {"items": [], "first": 1, "note": "a"}, "note: expected int, got str"),
    (Seeded, {}, "seed: missing"),
    (Even, {"number": 1}, "Even: not even"),
    (list[Even], [{"number": 1}], "[0]: Even: not even"),
    (Resize, [], "expected dict, got list"),
    (Resize, {"width": 1}, "path: missing"),
    (Resize, {"path": "p", "width": "1"}, "width: expected int, got str"),
    (Patch, {}, "id: missing"),
    (Patch, {"id": "1"}, "id: not the text of a UUID"),
    (Point, [1], "y: missing"),
    (Point, [1, 2, "a", 4], "expected 3 items, got 4"),
    (Point, "xy", "expected an object (Point), got str"),
]


@pytest.mark.feature("F116")
@pytest.mark.parametrize(("annotation", "value", "message"), MISMATCHES)
def test_a_mismatch_names_the_path_and_the_reason(annotation, value, message):
    assert str(read_mismatch(annotation, value)) == message


def test_a_mismatch_has_a_path_and_a_reason():
    wrong = read_mismatch(dict[str, Picture], {"a": {"path": "p", "sizes": [{"width": "1"}]}})

    assert wrong.path == "[...].sizes[0].width"
    assert wrong.reason == "expected int, got str"
    assert isinstance(wrong, ValueError)


def test_a_mismatch_can_be_pickled():
    wrong = pickle.loads(pickle.dumps(read_mismatch(Size, {"width": "1"})))

    assert (wrong.path, wrong.reason) == ("width", "expected int, got str")


def test_the_error_of_a_constructor_is_the_cause():
    assert repr(read_mismatch(Even, {"number": 1}).__cause__) == "ValueError('not even')"


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, SECRET),
        (datetime, SECRET),
        (UUID, SECRET),
        (Decimal, SECRET),
        (Colour, SECRET),
        (Rights, SECRET),
        (Literal["a"], SECRET),
        (dict[str, int], {SECRET: SECRET}),
        (dict[Literal["a"], int], {SECRET: 1}),
        (Size | int | list[int], [SECRET]),
        (Picture, {"path": "p", "at": SECRET}),
        (Point, [SECRET, SECRET]),
    ],
)
def test_a_mismatch_never_quotes_the_payload(annotation, value):
    wrong = read_mismatch(annotation, value)

    assert SECRET not in repr(wrong) + str(wrong)


class Plain:
    pass


@dataclass
class Waiting:
    wait: timedelta


class Raw(TypedDict):
    body: list[bytes]


class Odd(Enum):
    RAW = b"x"


class Undone(Enum):
    NUMBER = float("nan")


@dataclass
class Mutual:
    other: "Partner"
    wrong: bytes


@dataclass
class Partner:
    mutual: Mutual | None = None


@dataclass
class Unresolved:
    lost: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.feature("F116")
@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (bytes, "read as bytes: JSON has no bytes"),
        (bytearray, "read as bytearray: JSON has no bytes"),
        (timedelta, "read as datetime.timedelta: JSON has no durations; take seconds"),
        (Plain, f"read as {__name__}.Plain: supported are str, int"),
        (list[Plain], f"read as {__name__}.Plain: supported are str, int"),
        (int | Plain, f"read as {__name__}.Plain: supported are str, int"),
        (complex, "read as complex: supported are"),
        (deque, "read as collections.deque: supported are"),
        (OrderedDict, "read as collections.OrderedDict: supported are"),
        (Callable[[], int], "Callable[[], int]: supported are"),
        (type[int], "read as type[int]: supported are"),
        (tuple[int, *tuple[str, ...]], "*tuple[str, ...]: supported are"),
        (tuple[int, typing.Unpack[tuple[str, ...]]], "supported are"),  # noqa: UP044
        (dict[int, str], "read as dict[int, str]: the keys of a JSON object are text"),
        (dict[UUID, str], "the keys of a JSON object are text"),
        (dict[Level, str], "the keys of a JSON object are text"),
        ("Size", "resolve it first, with typing.get_type_hints"),
        (list["Size"], "resolve it first, with typing.get_type_hints"),
        (typing.List["Size"], "resolve it first, with typing.get_type_hints"),  # noqa: UP006
        ([int], "read as [<class 'int'>]: supported are"),
        (Literal[b"x"], "bytes has no JSON form"),
        (Odd, f"read as {__name__}.Odd: bytes has no JSON form"),
        (Undone, "Out of range float values are not JSON compliant"),
        (Waiting, "Waiting.wait: a payload cannot be read as datetime.timedelta"),
        (list[Raw], "Raw.body: a payload cannot be read as bytes"),
        (
            Unresolved,
            f"the annotations of {__name__}.Unresolved cannot be resolved: name 'Nowhere'",
        ),
    ],
)
def test_an_unsupported_annotation_is_rejected_when_the_reader_is_built(annotation, message):
    assert message in annotation_error(annotation)


def test_reading_and_writing_never_import_optional_packages():
    program = (
        "import sys\nfrom graphile_worker._payloads import build_reader, encode\n"
        "build_reader(int | None)\nencode([{1}])\n"
        "print(*{'pydantic', 'msgspec', 'attr'} & set(sys.modules))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("\n", "")


def test_a_rejected_class_leaves_no_partial_reader_in_the_cache():
    assert "Mutual.wrong" in annotation_error(Mutual)

    assert "Mutual.wrong" in annotation_error(Partner)


def test_a_reader_is_built_once():
    assert build_reader(Size) is build_reader(Size)
    assert build_reader(list[Size]) is build_reader(list[Size])


@pytest.mark.parametrize(
    ("annotation", "payload"),
    [
        (list[float], [1, 2]),
        (dict[str, float], {"a": 1}),
        (Patch, {"id": str(KEY), "size": {"width": 1}}),
        (Point, {"x": 1, "y": 2}),
    ],
)
def test_reading_does_not_change_the_payload(annotation, payload):
    before = json.dumps(payload)

    build_reader(annotation)(payload)

    assert json.dumps(payload) == before


AWARE = st.datetimes(timezones=st.just(UTC) | st.just(timezone(timedelta(hours=-3, minutes=-30))))
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
SIZES = st.builds(Size, st.integers(), st.integers())
ROUND_TRIPS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (datetime, AWARE),
    (date, st.dates()),
    (time, st.times()),
    (UUID, st.uuids()),
    (Decimal, st.decimals(allow_nan=False)),
    (Colour, st.sampled_from(Colour)),
    (Rights, st.sampled_from([Rights.READ, Rights.WRITE, Rights.READ | Rights.WRITE])),
    (list[Size], st.lists(SIZES)),
    (Picture, st.builds(Picture, TEXT, st.lists(SIZES), at=st.none() | AWARE)),
    (Point, st.builds(Point, st.floats(-1e9, 1e9), st.floats(-1e9, 1e9), TEXT)),
    (dict[str, tuple[int, ...]], st.dictionaries(TEXT, st.lists(st.integers()).map(tuple))),
    (frozenset[UUID], st.frozensets(st.uuids())),
]


@pytest.mark.feature("F116")
@given(data=st.data())
@pytest.mark.parametrize(("annotation", "values"), ROUND_TRIPS)
def test_an_encoded_value_is_read_back_by_its_annotation(annotation, values, data):
    value = data.draw(values)

    text = encode(value)

    assert text is not None
    assert value_and_type(build_reader(annotation)(json.loads(text))) == value_and_type(value)


def test_attrs_classes_are_written_as_objects():
    attrs = pytest.importorskip("attrs")
    kind = attrs.make_class("kind", {"at": attrs.field(type=date), "_inner": attrs.field()})

    assert encode([kind(date(2024, 1, 1), kind(1, 2))]) == (
        '[{"at":"2024-01-01","_inner":{"at":1,"_inner":2}}]'
    )


def test_a_named_tuple_is_written_as_an_array():
    assert encode({"at": Point(1, 2)}) == '{"at":[1,2,""]}'


@pytest.mark.parametrize("kind", [Size, Point, dict])
def test_a_class_itself_has_no_json_form(kind):
    with pytest.raises(JobSpecError, match="type has no JSON form"):
        encode({"kind": kind})


def array_of(item: Any) -> Any:
    return list[item]


def order_model(**config: Any) -> Any:
    pydantic = pytest.importorskip("pydantic")
    settings = pydantic.ConfigDict(**config)
    item = pydantic.create_model(
        "Item", __config__=settings, width=(int, ...), tags=(frozenset[str], frozenset())
    )
    items = (array_of(item), pydantic.Field(alias="orderItems"))
    return pydantic.create_model("Order", __config__=settings, at=(datetime, ...), items=items)


@pytest.mark.feature("F116")
@pytest.mark.parametrize("config", [{}, {"strict": True}, {"extra": "forbid"}])
def test_a_pydantic_model_survives_a_round_trip(config):
    order = order_model(**config)
    value = order(at=LEAP_DAY, orderItems=[{"width": 1, "tags": frozenset("a")}])

    text = encode(value)

    assert text == '{"at":"2024-02-29T01:02:03Z","orderItems":[{"width":1,"tags":["a"]}]}'
    assert build_reader(order)(json.loads(text)) == value


@pytest.mark.feature("F116")
def test_the_first_error_of_pydantic_becomes_the_mismatch():
    order = order_model()

    wrong = read_mismatch(order | None, {"at": UTC_TEXT, "orderItems": [{"width": SECRET}]})

    assert wrong.path == "orderItems[0].width"
    assert wrong.reason.startswith("Input should be a valid integer")
    assert SECRET not in str(wrong)


@pytest.mark.feature("F115")
def test_an_unknown_key_is_rejected_if_the_model_forbids_it():
    payload = {"at": UTC_TEXT, "orderItems": [], "more": 1}

    assert build_reader(order_model())(payload).items == []
    assert read_mismatch(order_model(extra="forbid"), payload).path == "[...]"


@pytest.mark.feature("F116")
def test_a_dataclass_of_pydantic_is_read_by_pydantic():
    checked = pytest.importorskip("pydantic.dataclasses").dataclass
    kind = checked(dataclasses.make_dataclass("kind", [("width", int)]))

    assert build_reader(kind)({"width": "3"}) == kind(width=3)
    assert read_mismatch(kind, {"width": "x"}).path == "width"
    assert encode(kind(width=3)) == '{"width":3}'


def test_an_incomplete_pydantic_model_is_rejected_when_the_reader_is_built():
    model = pytest.importorskip("pydantic").create_model("Model", lost=("Nowhere", ...))

    assert "Model: its annotations cannot be resolved yet" in annotation_error(model)


def test_a_root_model_may_be_an_array():
    dates = pytest.importorskip("pydantic").RootModel[list[date]]

    assert encode(dates([date(2024, 1, 1)])) == '["2024-01-01"]'
    assert build_reader(dates)(["2024-01-01"]).root == [date(2024, 1, 1)]


def order_struct() -> tuple[Any, Any]:
    msgspec = pytest.importorskip("msgspec")
    item = msgspec.defstruct("item", [("width", int), ("on", set[date], set())])
    fields = [("at", datetime), ("order_items", array_of(item))]
    return msgspec.defstruct("order", fields, rename="camel", tag="order"), item


@pytest.mark.feature("F116")
def test_a_msgspec_struct_survives_a_round_trip():
    order, item = order_struct()
    value = order(at=LEAP_DAY, order_items=[item(1, {date(2024, 1, 1)})])

    text = encode({"order": value})

    assert text == (
        '{"order":{"type":"order","at":"2024-02-29T01:02:03+00:00",'
        '"orderItems":[{"width":1,"on":["2024-01-01"]}]}}'
    )
    assert build_reader(order)(json.loads(text)["order"]) == value


@pytest.mark.feature("F116")
def test_the_error_of_msgspec_becomes_the_mismatch():
    order, item = order_struct()
    payload = {"type": "order", "at": UTC_TEXT, "orderItems": [{"width": "x"}]}

    assert str(read_mismatch(order, payload)) == "orderItems[0].width: Expected `int`, got `str`"
    assert str(read_mismatch(item, [])) == "Expected `object`, got `array`"


def list_quoting_models() -> Iterator[tuple[Any, Any]]:
    """Models that take the value of `kept`, and values that do not fit."""
    pydantic = pytest.importorskip("pydantic")
    cat: Any = pydantic.create_model("Cat", kind=(Literal["cat"], ...))
    dog: Any = pydantic.create_model("Dog", kind=(Literal["dog"], ...))
    pet = (cat | dog, pydantic.Field(discriminator="kind"))
    yield pydantic.create_model("Owner", pet=pet), {"pet": {"kind": SECRET}}
    yield dict[str, int], {SECRET: "x"}
    yield dict[int, int], {SECRET: 1}
    yield dict[str, list[dict[str, int]]], {SECRET: [{SECRET: "x"}]}
    yield dict[str, int] | int, {SECRET: "x"}
    yield pydantic.create_model("Strict", __config__={"extra": "forbid"}), {SECRET: 1}
    yield UUID, SECRET
    yield pydantic.AnyUrl, SECRET
    yield pydantic.ImportString, SECRET
    yield pydantic.Json, SECRET
    yield pydantic.Json[dict[str, int]], f'{{"{SECRET}": "x"}}'
    yield Colour, SECRET
    yield Literal["a"], SECRET
    yield datetime, SECRET


def test_errors_of_pydantic_never_quote_the_payload():
    pydantic = pytest.importorskip("pydantic")
    for kind, value in list_quoting_models():
        model = pydantic.create_model("Model", kept=(kind, ...))

        wrong = read_mismatch(model, {"kept": value})

        assert SECRET not in repr(wrong) + str(wrong), kind
        assert wrong.path.startswith("kept"), kind


def test_the_path_of_an_error_of_pydantic_hides_only_keys_that_are_data():
    pydantic = pytest.importorskip("pydantic")
    item = pydantic.create_model("Item", width=(int, ...), size=(int, ...))
    lines = dict.__class_getitem__((str, array_of(item)))
    model = pydantic.create_model("Model", lines=(lines, ...))

    wrong = read_mismatch(model, {"lines": {"width": [], SECRET: [{"width": "x", "size": 1}]}})
    lacking = read_mismatch(model, {"lines": {SECRET: [{"width": 1}]}})

    assert wrong.path == "lines[...][0].width"
    assert str(lacking) == "lines[...][0].size: Field required"


def test_errors_of_msgspec_never_quote_the_payload():
    msgspec = pytest.importorskip("msgspec")
    fields: list[Any] = ["a"]
    first = msgspec.defstruct("First", fields, tag="first")
    second = msgspec.defstruct("Second", fields, tag="second")
    strict = msgspec.defstruct("Strict", [], forbid_unknown_fields=True)
    for kind, value in [
        (Word, SECRET),
        (Literal["a"], SECRET),
        (first | second, {"type": SECRET, "a": 1}),
        (first, {"type": SECRET, "a": 1}),
        (strict, {SECRET: 1}),
        (strict, {f"{SECRET} - at `$.x`": 1}),
        (dict[str, int], {SECRET: "x"}),
        (dict[int, int], {SECRET: 1}),
        (UUID, SECRET),
        (datetime, SECRET),
    ]:
        struct = msgspec.defstruct("Struct", [("kept", kind)])

        wrong = read_mismatch(struct, {"kept": value})

        assert SECRET not in repr(wrong) + str(wrong), kind
        assert wrong.reason, kind


def test_errors_of_other_keys_of_a_task_never_quote_them():
    def task(**rest: int) -> None: ...

    with pytest.raises(Mismatch) as raised:
        Signature(task).check_payload({SECRET: "x"})
    with pytest.raises(JobSpecError) as unencodable:
        Signature(task).build_payload([], {SECRET: object()})

    assert str(raised.value) == "[...]: expected int, got str"
    assert SECRET not in str(unencodable.value)


def test_a_naive_datetime_in_a_struct_is_rejected():
    order, _ = order_struct()

    with pytest.raises(JobSpecError, match="naive datetime"):
        encode(order(at=datetime(2024, 1, 1), order_items=[]))
