"""Tasks whose payloads use each kind of annotation, and payloads that do and do not fit."""

import copy
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import KW_ONLY, InitVar, dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum, Flag, IntEnum, IntFlag, StrEnum
from typing import (
    Annotated,
    Any,
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

import attrs
import msgspec
import pydantic

from graphile_worker import App, BatchTask, JobContext, Task
from graphile_worker._payloads import Mismatch

T = TypeVar("T")
UserId = NewType("UserId", int)


class Color(Enum):
    RED = "red"
    PAIR = (1, 2)
    HALF = 0.5


class Level(IntEnum):
    LOW = 1
    HIGH = 3


class Word(StrEnum):
    YES = "yes"
    NO = "no"


class Access(Flag):
    READ = 1
    WRITE = 2


class Sparse(Flag):
    FIRST = 1
    THIRD = 4


class Distant(Flag):
    NEAR = 1
    FAR = 2**20


class Bits(IntFlag):
    ONE = 1


@dataclass
class Size:
    """The size of a picture."""

    width: int
    height: int = 10


@dataclass(frozen=True)
class Tag:
    name: str


@dataclass(frozen=True, slots=True)
class Picture:
    path: str
    sizes: list[Size] = field(default_factory=list)
    _: KW_ONLY
    at: datetime | None = None
    area: int = field(default=0, init=False)


@dataclass
class Tree:
    name: str
    children: "list[Tree]" = field(default_factory=list)


@dataclass
class Page(Generic[T]):
    items: list[T]
    next: "Page[T] | None" = None


@dataclass
class Seeded:
    seed: InitVar[int]
    value: int = 0


class Resize(TypedDict):
    path: str
    width: NotRequired[int]


class Patch(TypedDict, total=False):
    id: Required[Annotated[UUID, "key"]]
    at: "NotRequired[date]"
    size: Size


class Folder(TypedDict):
    name: str
    folders: "list[Folder]"


class Point(NamedTuple):
    x: float
    y: float
    label: str = ""


@attrs.define
class Box:
    width: float
    _depth: int = attrs.field(default=1, alias="depth")
    note: Any = attrs.field(default="", converter=str)


class Address(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    street: str
    number: int = pydantic.Field(ge=1)


class Customer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    full_name: str = pydantic.Field(alias="fullName", max_length=10)
    address: Address | None = None
    friends: "list[Customer]" = []


class Item(msgspec.Struct, forbid_unknown_fields=True):
    sku: str
    amount: Annotated[int, msgspec.Meta(ge=0)] = 1


class Cart(msgspec.Struct):
    items: list[Item]
    note: str | None = None


class Basket(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    numbers: set[int]
    words: frozenset[str] = frozenset()


class Drawer(msgspec.Struct):
    numbers: set[int]


ANNOTATIONS: list[Any] = [
    str,
    int,
    bool,
    float,
    None,
    Any,
    Decimal,
    datetime,
    date,
    time,
    UUID,
    Color,
    Level,
    Word,
    Access,
    Sparse,
    Distant,
    Bits,
    Literal["a", 1, True, None],
    UserId,
    list,
    list[float],
    Sequence[date],
    tuple[int, ...],
    tuple[int, str],
    tuple[()],
    set,
    set[int],
    AbstractSet[UUID],
    frozenset[tuple[int, Any]],
    set[Size],
    set[Tag],
    set[list[int] | str],
    dict[str, float],
    Mapping[str, Any],
    dict[Literal["a", "b"], int],
    dict[Word, list[int]],
    int | None,
    Optional[str],  # noqa: UP045
    int | str | list[int],
    float | int,
    Decimal | bool,
    datetime | date,
    Union[Size, str],  # noqa: UP007
    list[Size | Point | None],
    Size,
    Picture,
    Tree,
    Page[date],
    Page[int | None],
    Seeded,
    Resize,
    Patch,
    Folder,
    Point,
    Box,
    Customer,
    Cart,
    Basket,
    Drawer,
]


def build_app() -> App[None]:
    """Build an app with a task for each annotation, and for each form of a signature."""
    app = App()
    for number, annotation in enumerate(ANNOTATIONS):

        def task(value: Any) -> None: ...

        task.__annotations__["value"] = annotation
        app.task(name=f"annotation_{number:02}")(task)

    @app.task
    async def greet(ctx: JobContext, name: str, times: int = 1) -> None: ...

    @app.task
    def tidy() -> None: ...

    @app.task
    def collect(first: int, **rest: str) -> None: ...

    @app.task
    def extend(first: int, **rest: Any) -> None: ...

    @app.task
    def forward(**rest: Any) -> None: ...

    @app.task
    def whole(payload: Picture | list[int], /) -> None: ...

    @app.task
    def raw(payload, /) -> None: ...

    @app.batch_task
    def batch(items: list[Size]) -> None: ...

    @app.batch_task
    def mixed_batch(items: list[int] | list[str]) -> None: ...

    return app


def fits_worker(task: Task[..., Any], payload: Any) -> bool:
    """Return whether a worker can call the task with the payload, and with all items of a batch."""
    try:
        if isinstance(task, BatchTask):
            task.signature.check_payload(payload)  # type: ignore[union-attr]
        else:
            task.signature.build_call_arguments(payload, None)
    except Mismatch:
        return False
    return True


def is_null_object(task: Task[..., Any], payload: Any) -> bool:
    """Return whether the payload is null where the worker takes it for an object without keys."""
    return payload is None and getattr(task.signature, "has_keys", False)


# No text that a reader accepts in a spelling which the schema leaves out, and no float without a
# fraction: `tests/unit/test_json_schema.py` lists these differences.
TEXTS = [
    *["", "x", "red", "yes", "a", "1.10", "-3e5", "NaN", "soon", "item", "\u00e9"],
    *["2024-02-29", "2023-02-29", "2023-02-28", "1900-02-29", "2000-02-29", "2024-04-31"],
    *["2024-13-01", "0000-01-01", "9999-12-31", "2024-00-10"],
    *["2024-02-29T01:02:03Z", "2024-02-29T01:02:03.5+05:30", "2023-02-29T01:02:03Z"],
    *["2024-01-01T00:00:00", "2024-01-01T25:00:00Z", "2024-01-01T00:00:60Z"],
    *["01:02:03", "01:02", "23:59:59.999-01:00", "25:00", "01:60"],
    *[
        "00000000-0000-0000-0000-000000000001",
        "0000-0000-0000",
        "g0000000-0000-0000-0000-000000000001",
    ],
]
SCALARS = [*TEXTS, None, True, False, 0, 1, 2, 3, 4, 5, 7, -1, -4, 10**20, 0.5, 1.25, -2.5]
KEYS = ["name", "path", "width", "x", "a", "b", "yes", "other", "_cron", "value", "type"]


def iter_payloads(
    schema: Any, definitions: Mapping[str, Any], count: int, chance: random.Random
) -> Iterator[Any]:
    """Yield payloads that fit a schema, and changed ones, half of each."""
    for number in range(count):
        payload = build_value(schema, definitions, chance, depth=0)
        for _ in range(0 if number % 2 else chance.choice((1, 1, 2))):
            payload = change(copy.deepcopy(payload), chance)
        yield payload


def build_value(
    schema: Any, definitions: Mapping[str, Any], chance: random.Random, depth: int
) -> Any:
    """Build a value that fits a schema, if that is possible."""

    def build(part: Any) -> Any:
        return build_value(part, definitions, chance, depth + 1)

    if schema is True or not schema.keys() - {"$defs"}:
        return build_any(chance)
    if "$ref" in schema:
        return build(definitions[schema["$ref"].removeprefix("#/$defs/")])
    if "enum" in schema:
        return chance.choice(schema["enum"])
    if "anyOf" in schema:
        # The last one is null or has no items, so that recursion ends.
        return build(schema["anyOf"][-1] if depth > 6 else chance.choice(schema["anyOf"]))
    kinds = schema["type"]
    kind = kinds if isinstance(kinds, str) else chance.choice(kinds)
    if kind == "object":
        return _build_object(schema, build, chance, depth)
    if kind == "array":
        prefix = [build(each) for each in schema.get("prefixItems", ())]
        if "prefixItems" in schema:
            return prefix[: chance.randint(schema.get("minItems", 0), len(prefix))]
        longest = 0 if depth > 4 else min(schema.get("maxItems", 3), 3)
        return [build(schema.get("items", {})) for _ in range(chance.randint(0, longest))]
    return chance.choice([each for each in SCALARS if _fits_scalar(kind, schema, each)])


def _build_object(schema: Any, build: Any, chance: random.Random, depth: int) -> dict[str, Any]:
    required = schema.get("required", ())
    value = {
        key: build(part)
        for key, part in schema.get("properties", {}).items()
        if key in required or (depth < 6 and chance.random() < 0.5)
    }
    rest = schema.get("additionalProperties", True)
    keys = schema.get("propertyNames", {}).get("enum", KEYS)
    for key in chance.sample(keys, min(len(keys), chance.choice((0, 0, 1, 2)))):
        if rest is not False and key not in schema.get("properties", {}):
            value[key] = build(rest) if depth < 6 else 1
    return value


def _fits_scalar(kind: str, schema: Any, value: Any) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, str):
        longest = schema.get("maxLength", 100)
        is_match = re.search(schema.get("pattern", ""), value) is not None
        return kind == "string" and is_match and len(value) <= longest
    if value is None:
        return kind == "null"
    low, high = schema.get("minimum", -(10**30)), schema.get("maximum", 10**30)
    is_kind = kind == "number" or (kind == "integer" and isinstance(value, int))
    return is_kind and bool(low <= value <= high)


def build_any(chance: random.Random, depth: int = 0) -> Any:
    """Build any JSON value."""
    form = chance.random()
    if form < 0.7 or depth > 2:
        return chance.choice(SCALARS)
    items = [build_any(chance, depth + 1) for _ in range(chance.randint(0, 3))]
    return items if form < 0.85 else dict(zip(KEYS, items, strict=False))


def change(value: Any, chance: random.Random) -> Any:
    """Change one place of a value."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        key = chance.choice(list(value))
        action = chance.random()
        if action < 0.2:
            del value[key]
        elif action < 0.3:
            value[chance.choice(KEYS)] = build_any(chance)
        else:
            value[key] = change(value[key], chance)
        return value
    if isinstance(value, list) and value and chance.random() < 0.8:
        position = chance.randrange(len(value))
        action = chance.random()
        if action < 0.2:
            del value[position]
        elif action < 0.4:
            value.append(build_any(chance))
        else:
            value[position] = change(value[position], chance)
        return value
    return build_any(chance)
