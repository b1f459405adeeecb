"""Tasks: the meaning of parameters, the functions that are rejected, the jobs that tasks add."""

import asyncio
import functools
import inspect
import json
import logging
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphile_worker import (
    App,
    BaseJobContext,
    Client,
    ConfigurationError,
    JobContext,
    JobSpec,
    JobSpecError,
    SyncJobContext,
    Task,
    TaskRouter,
    tasks,
)
from graphile_worker._payloads import Mismatch
from graphile_worker._worker.context import Context, SyncContext
from graphile_worker.retries import Backoff
from graphile_worker.tasks import Signature, TaskOptions
from graphile_worker.tasks.batch import BatchSignature
from tests.support.options import JOB_OPTIONS

SECRET = "s3cr3t-canary"
NOWHERE = "postgres://nobody@127.0.0.1:1/nowhere"


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Item:
    name: str
    width: int = 1


@dataclass
class Order:
    id: UUID
    placed: datetime
    items: list[Item] = field(default_factory=list)


class Resize(TypedDict):
    path: str
    width: int


class Deps:
    pass


class Recorder(App[None]):
    """An app that records the specs that it would add."""

    def __init__(self) -> None:
        super().__init__(NOWHERE)
        self.added: list[tuple[JobSpec, object]] = []

    def enqueue(self, spec: JobSpec, conn: object = None, read_result: Any = None) -> Any:
        self.added.append((spec, conn))

    async def aenqueue(self, spec: JobSpec, conn: object = None, read_result: Any = None) -> Any:
        self.enqueue(spec, conn)


@pytest.fixture
def app() -> Recorder:
    return Recorder()


@pytest.fixture
def send_email(app: Recorder) -> Task[..., str]:
    @app.task
    def send_email(to: str, subject: str = "Hello") -> str:
        return f"{subject}, {to}"

    return send_email


def module(source: str) -> ModuleType:
    """Make a module, because annotations are resolved in the module of their function."""
    made = ModuleType("made")
    exec(compile(source, "made.py", "exec", dont_inherit=True), made.__dict__)
    return made


def taking(annotation: Any) -> Callable[..., Any]:
    """Make a function whose parameter `what` has this annotation."""

    def task(what):
        return what

    task.__annotations__["what"] = annotation
    return task


def read(fn: Callable[..., Any], payload: Any) -> tuple[list[Any], dict[str, Any]]:
    return Signature(fn).read_arguments(payload)


def sent(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return Signature(fn).build_payload(args, kwargs)


def called(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call the function with these arguments after a round trip through JSON."""
    signature = Signature(fn)
    payload = json.loads(json.dumps(signature.build_payload(args, kwargs)))
    positional, named = signature.read_arguments(payload)
    return fn(*positional, **named)


# Parameters are keys


@pytest.mark.feature("F105")
def test_parameters_are_the_keys_of_the_payload():
    def task(to, subject): ...

    assert sent(task, "ada", subject="Hi") == {"to": "ada", "subject": "Hi"}
    assert read(task, {"to": "ada", "subject": "Hi"}) == ([], {"to": "ada", "subject": "Hi"})


@pytest.mark.feature("F105")
def test_keyword_only_parameters_are_keys_too():
    def task(*, to): ...

    assert sent(task, to="ada") == {"to": "ada"}
    with pytest.raises(TypeError):
        sent(task, "ada")


@pytest.mark.feature("F105")
def test_a_task_without_parameters_has_an_empty_object():
    def task(): ...

    assert sent(task) == {}
    assert read(task, {"anything": 1}) == ([], {})


@pytest.mark.feature("F105")
def test_a_default_is_not_sent_and_may_change_before_the_job_runs():
    def task(to, subject="Hello"): ...

    assert sent(task, "ada") == {"to": "ada"}
    assert read(task, {"to": "ada"}) == ([], {"to": "ada"})


def test_a_default_that_is_given_is_sent():
    def task(subject="Hello"): ...

    assert sent(task, "Hello") == {"subject": "Hello"}


@pytest.mark.feature("F105")
def test_a_missing_key_is_a_mismatch():
    def task(to: str): ...

    with pytest.raises(Mismatch) as caught:
        read(task, {})

    assert (caught.value.path, caught.value.reason) == ("to", "missing")


@pytest.mark.parametrize("payload", [[1], "text", 7, None, True])
def test_parameters_need_an_object(payload):
    def task(to=1): ...

    with pytest.raises(Mismatch, match="expected an object with the parameters as keys"):
        read(task, payload)


def test_a_job_with_the_payload_null_runs_as_one_with_an_empty_object():
    """Crontabs of Rust workers add such jobs."""

    def optional(to=1): ...
    def required(to): ...
    def whole(payload, /): ...
    def batch(items: list[int]): ...

    assert Signature(optional).build_call_arguments(None, None) == ([], {})
    assert Signature(whole).build_call_arguments(None, None) == ([None], {})
    with pytest.raises(Mismatch, match="missing"):
        Signature(required).build_call_arguments(None, None)
    with pytest.raises(Mismatch, match="must be an array of items, got NoneType"):
        BatchSignature(batch).build_call_arguments(None, None)


@pytest.mark.feature("F115")
def test_keys_without_a_parameter_are_ignored():
    def task(to): ...

    assert read(task, {"to": "ada", "table": "users", "op": "INSERT"}) == ([], {"to": "ada"})


@pytest.mark.feature("F115")
def test_keys_that_begin_with_an_underscore_are_ignored():
    def task(to, **rest): ...

    payload = {"to": "ada", "_cron": {"ts": "…"}, "_trace": 1, "_": 2, "other": 3}

    assert read(task, payload) == ([], {"to": "ada", "other": 3})


def test_a_parameter_that_begins_with_an_underscore_is_rejected():
    def task(to, *, _cron=None): ...

    with pytest.raises(ConfigurationError, match="rename _cron"):
        Signature(task)


def test_a_key_that_begins_with_an_underscore_is_rejected_when_enqueued():
    def task(**rest): ...

    with pytest.raises(JobSpecError) as caught:
        sent(task, _cron=1)

    assert caught.value.argument == "payload._cron"


@pytest.mark.parametrize("key", ["a-b", "ünï", "a b", "class", "rest", ""])
def test_other_keys_go_to_double_star_parameters(key):
    def task(to, **rest): ...

    arguments = {"to": "ada", key: 1}

    assert sent(task, **arguments) == arguments
    assert read(task, arguments) == ([], arguments)


def test_double_star_values_are_read_by_annotation():
    def task(**moments: datetime): ...

    moment = datetime(2030, 1, 1, tzinfo=UTC)

    assert sent(task, a=moment) == {"a": "2030-01-01T00:00:00+00:00"}
    assert read(task, {"a": "2030-01-01T00:00:00Z"}) == ([], {"a": moment})
    with pytest.raises(JobSpecError) as caught:
        sent(task, a=moment, b=7)
    # Errors do not quote keys that the function does not name.
    assert caught.value.argument == "payload[...]"


def test_double_star_parameters_may_begin_with_an_underscore():
    def task(to, **_): ...

    assert read(task, {"to": 1, "more": 2}) == ([], {"to": 1, "more": 2})


# The whole payload


@pytest.mark.feature("F105", "F115", "F122")
@pytest.mark.parametrize(
    "payload", [{"a": 1, "_cron": {"ts": 1}, "b": [None]}, {}, [1, "two"], "text", 7, 0.5, False]
)
def test_a_positional_only_parameter_receives_the_whole_payload_unchanged(payload):
    def task(payload, /): ...

    assert sent(task, payload) == payload
    assert read(task, payload) == ([payload], {})


@pytest.mark.feature("F116")
def test_the_whole_payload_is_read_by_annotation():
    def task(order: Order, /):
        return order

    order = Order(UUID(int=1), datetime(2030, 1, 1, tzinfo=UTC), [Item("a"), Item("b", 2)])

    assert called(task, order) == order


def test_the_whole_payload_may_have_any_name():
    def task(_anything, /): ...

    assert read(task, 1) == ([1], {})


def test_the_default_of_the_whole_payload_is_sent():
    def task(payload=7, /): ...

    assert sent(task) == 7


def test_the_whole_payload_cannot_be_given_by_name():
    def task(payload, /): ...

    with pytest.raises(TypeError):
        sent(task, payload=1)


def test_none_is_checked_as_the_empty_object_that_the_database_stores():
    def anything(payload, /): ...
    def mapping(payload: dict[str, int] | None = None, /): ...
    def number(payload: int | None, /): ...

    assert sent(anything, None) is None
    assert sent(mapping) is None
    with pytest.raises(JobSpecError) as caught:
        sent(number, None)
    assert caught.value.argument == "payload"


# The context


def plain_context(ctx: SyncJobContext, to: str): ...
def context_with_deps(ctx: SyncJobContext[Deps], to: str): ...
def context_of_anything(ctx: SyncJobContext[Any], to: str): ...
def context_as_text(ctx: "SyncJobContext", to: str): ...
def context_with_deps_as_text(ctx: "SyncJobContext[Deps]", to: str): ...
def context_with_deps_that_come_later(ctx: "SyncJobContext[Later]", to: str): ...
def context_by_position(ctx: SyncJobContext, /, to: str): ...


Alias = SyncJobContext[Deps]


def context_by_alias(ctx: Alias, to: str): ...
def context_by_alias_as_text(ctx: "Alias", to: str): ...


@dataclass
class Later:
    size: int


@pytest.mark.feature("F105")
@pytest.mark.parametrize(
    "fn",
    [
        plain_context,
        context_with_deps,
        context_of_anything,
        context_as_text,
        context_with_deps_as_text,
        context_with_deps_that_come_later,
        context_by_position,
        context_by_alias,
        context_by_alias_as_text,
    ],
)
def test_a_first_parameter_annotated_with_a_context_is_not_a_key(fn):
    signature = Signature(fn)

    assert signature.takes_context
    assert signature.build_payload(["ada"], {}) == {"to": "ada"}
    assert signature.read_arguments({"to": "ada"}) == ([], {"to": "ada"})


IMPORTS = {
    "by name": "from graphile_worker import SyncJobContext",
    "by another name": "from graphile_worker import SyncJobContext as Ctx",
    "by its module": "import graphile_worker.tasks",
    "by its module under another name": "import graphile_worker as gw",
    "for type checkers alone": (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n"
        "    from graphile_worker import SyncJobContext\n"
        "    from shop import Deps"
    ),
}
ANNOTATIONS = {
    "by name": "SyncJobContext",
    "by another name": "Ctx",
    "by its module": "graphile_worker.tasks.SyncJobContext",
    "by its module under another name": "gw.SyncJobContext",
    "for type checkers alone": "SyncJobContext",
}


@pytest.mark.feature("F105")
@pytest.mark.parametrize("argument", ["", "[None]", "[Deps]"])
@pytest.mark.parametrize("imported", IMPORTS)
def test_the_context_is_found_however_it_is_imported(imported, argument):
    made = module(
        "from __future__ import annotations\n"
        f"{IMPORTS[imported]}\n"
        f"def task(ctx: {ANNOTATIONS[imported]}{argument}, to: str) -> Report: ..."
    )

    signature = Signature(made.task)

    assert signature.takes_context
    assert signature.read_arguments({"to": "ada"}) == ([], {"to": "ada"})


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are evaluated at once")
def test_names_that_only_type_checkers_import_need_no_quotes():
    made = module(
        "from graphile_worker import SyncJobContext\n"
        "def task(ctx: SyncJobContext[Missing], to: str) -> Report: ...\n"
        "def other(ctx: SyncJobContext, to: list[Later]) -> None: ..."
    )

    assert Signature(made.task).read_arguments({"to": "ada"}) == ([], {"to": "ada"})
    assert Signature(made.other).takes_context


@pytest.mark.feature("F105")
def test_the_context_comes_before_the_whole_payload():
    def task(ctx: SyncJobContext, payload: int, /): ...

    signature = Signature(task)

    assert signature.takes_context
    assert signature.takes_whole_payload
    assert signature.read_arguments(7) == ([7], {})


def test_the_context_may_be_the_only_parameter():
    def task(ctx: SyncJobContext): ...

    assert sent(task) == {}


def last(to: str, ctx: SyncJobContext): ...
def last_by_name(to: str, *, ctx: SyncJobContext[Deps]): ...
def last_as_text(to: str, ctx: "SyncJobContext[Deps]"): ...
def twice(ctx: SyncJobContext, other: SyncJobContext): ...


@pytest.mark.parametrize("fn", [last, last_by_name, last_as_text, twice])
def test_a_context_that_is_not_first_is_rejected(app, fn):
    with pytest.raises(ConfigurationError, match=f"{fn.__name__}: the context must be the first"):
        app.task(fn)


async def async_context(ctx: JobContext, to: str): ...
async def async_context_as_text(ctx: "JobContext[Deps]", to: str): ...
async def base_context_of_an_async_function(ctx: BaseJobContext[Deps], to: str): ...
def base_context_of_a_plain_function(ctx: BaseJobContext, to: str): ...


class AsyncCall:
    async def __call__(self, ctx: JobContext, to: str): ...


@pytest.mark.parametrize(
    "fn",
    [
        async_context,
        async_context_as_text,
        base_context_of_an_async_function,
        base_context_of_a_plain_function,
        AsyncCall(),
    ],
)
def test_async_functions_take_a_job_context_and_all_functions_a_base_context(fn):
    assert Signature(fn).takes_context


def plain_with_async_context(ctx: JobContext, to: str): ...
def plain_with_async_context_as_text(ctx: "JobContext[Deps]", to: str): ...
async def async_with_sync_context(ctx: SyncJobContext[Deps], to: str): ...


@functools.wraps(async_context)
def plain_wrapper(*args: Any) -> Any: ...


@pytest.mark.parametrize(
    ("fn", "kind", "expected"),
    [
        (plain_with_async_context, "def", "SyncJobContext"),
        (plain_with_async_context_as_text, "def", "SyncJobContext"),
        (plain_wrapper, "def", "SyncJobContext"),
        (async_with_sync_context, "async def", "JobContext"),
    ],
)
def test_a_context_of_the_other_kind_is_rejected(app, fn, kind, expected):
    with pytest.raises(ConfigurationError) as caught:
        app.task(fn)

    assert str(caught.value) == (
        f"{fn.__qualname__}: a task written with `{kind}` receives a {expected}. Annotate its "
        f"first parameter as `ctx: {expected}`."
    )


def methods_of(protocol: type) -> list[str]:
    return [name for name, found in vars(protocol).items() if inspect.isfunction(found)]


@pytest.mark.parametrize(
    ("protocol", "implementation"), [(JobContext, Context), (SyncJobContext, SyncContext)]
)
def test_a_context_has_the_methods_of_its_protocol(protocol, implementation):
    names = [name for name in methods_of(protocol) if not name.startswith("_")]

    assert len(names) == 6
    for name in names:
        declared, found = getattr(protocol, name), getattr(implementation, name)
        assert list(inspect.signature(found).parameters.values()) == list(
            inspect.signature(declared).parameters.values()
        )
        assert inspect.iscoroutinefunction(found) == inspect.iscoroutinefunction(declared)


def test_both_contexts_have_the_same_methods():
    assert methods_of(JobContext) == methods_of(SyncJobContext)


# What cannot be a task


def as_reference(payload, helpers): ...
def as_reference_positional(payload, helpers, /): ...
def as_reference_by_other_name(_payload, helpers): ...
def as_reference_half_typed(payload: dict[str, Any], helpers): ...
def as_folder(payload, ctx): ...
def as_folder_spelled_out(payload, context): ...


@pytest.mark.parametrize(
    "fn",
    [
        as_reference,
        as_reference_positional,
        as_reference_by_other_name,
        as_reference_half_typed,
        as_folder,
        as_folder_spelled_out,
    ],
)
def test_a_function_of_payload_and_helpers_is_rejected_with_a_remedy(app, fn):
    with pytest.raises(ConfigurationError) as caught:
        app.task(fn)

    message = str(caught.value)
    assert message.startswith(f"{fn.__name__}: ")
    assert "`def task(payload, /)`" in message
    assert "`ctx: SyncJobContext`" in message


def test_a_key_may_be_called_payload():
    def task(payload, other): ...

    assert sent(task, 1, 2) == {"payload": 1, "other": 2}


def test_star_args_are_rejected(app):
    def task(*to): ...

    with pytest.raises(ConfigurationError, match=r"\*args have no names"):
        app.task(task)


def test_the_whole_payload_must_be_the_only_parameter(app):
    def task(payload, /, to): ...

    with pytest.raises(
        ConfigurationError, match="takes the whole payload and must be the only one"
    ):
        app.task(task)


@pytest.mark.parametrize("annotation", [bytes, timedelta, Callable[[], int], dict[int, str], Deps])
def test_an_annotation_that_json_cannot_represent_is_rejected_at_the_definition(app, annotation):
    with pytest.raises(ConfigurationError, match=r"task, parameter what: a payload cannot be read"):
        app.task(taking(annotation))


@pytest.mark.parametrize("annotation", ["list[", "datetime.Nothing", "str + 1"])
def test_text_that_is_not_an_annotation_is_rejected_at_the_definition(app, annotation):
    made = module(f"import datetime\ndef task(what: {annotation!r}): ...")

    with pytest.raises(ConfigurationError, match="^task, parameter what: "):
        app.task(made.task)


def test_annotations_of_double_star_parameters_are_checked():
    def task(**rest: bytes): ...

    with pytest.raises(ConfigurationError, match="parameter rest"):
        Signature(task)


def test_the_annotation_of_the_result_is_ignored():
    def task() -> "bytes": ...  # type: ignore[empty-body]

    assert sent(task) == {}


@pytest.mark.parametrize("name", ["x" * 129, "a\0b"])
def test_an_identifier_that_jobs_cannot_have_is_rejected(app, name):
    with pytest.raises(JobSpecError) as caught:
        app.task(name=name)(lambda: None)

    assert caught.value.argument == "identifier"


def test_a_callable_without_a_name_needs_the_option_name(app):
    def task(to: str, subject: str): ...

    with pytest.raises(ConfigurationError, match="has no __name__. Pass one with name="):
        app.task(functools.partial(task, subject="Hi"))
    assert app.task(name="greet")(functools.partial(task, subject="Hi")).spec("ada").payload == {
        "to": "ada"
    }


def test_a_task_cannot_be_decorated_again(app, send_email):
    with pytest.raises(ConfigurationError):
        app.task(send_email)


# Forward references


def names_a_class_further_down(what: "FurtherDown"): ...


@dataclass
class HoldsOneFurtherDown:
    inner: "FurtherDown"


def names_it_inside_a_class(what: HoldsOneFurtherDown): ...


EARLY = [Signature(names_a_class_further_down), Signature(names_it_inside_a_class)]


@dataclass
class FurtherDown:
    size: int


@pytest.mark.feature("F116")
def test_a_class_may_be_defined_after_the_task_that_names_it():
    direct, nested = EARLY

    assert direct.read_arguments({"what": {"size": 1}}) == ([], {"what": FurtherDown(1)})
    found = nested.read_arguments({"what": {"inner": {"size": 1}}})
    assert found == ([], {"what": HoldsOneFurtherDown(FurtherDown(1))})


@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
def test_an_annotation_that_stays_undefined_raises_at_the_first_use(future):
    annotation = "list[Nothing]" if future else "'list[Nothing]'"
    signature = Signature(module(f"{future}def task(what: {annotation}): ...").task)

    with pytest.raises(ConfigurationError, match="task, parameter what: name 'Nothing'"):
        signature.build_payload([[]], {})


def test_a_decorated_function_keeps_its_annotations():
    def decorated(fn):
        @functools.wraps(fn)
        def around(*args, **kwargs):
            return fn(*args, **kwargs)

        return around

    signature = Signature(decorated(context_with_deps_as_text))

    assert signature.takes_context
    assert signature.build_payload(["ada"], {}) == {"to": "ada"}


# Arguments are checked when they are enqueued


@pytest.mark.feature("F54")
@pytest.mark.parametrize(
    ("annotation", "value", "where"),
    [
        (str, 7, "payload.what"),
        (int, "7", "payload.what"),
        (int, True, "payload.what"),
        (Colour, "green", "payload.what"),
        (Literal["a", "b"], "c", "payload.what"),
        (list[int], [1, "two"], "payload.what[1]"),
        (Item, {"width": 1}, "payload.what.name"),
        (Order, Order("x", datetime.now(UTC)), "payload.what.id"),  # type: ignore[arg-type]
        (dict[str, Item], {"a": {"name": 1}}, "payload.what[...].name"),
        (Resize, {"path": "x"}, "payload.what.width"),
        (date, datetime(2030, 1, 1, tzinfo=UTC), "payload.what"),
    ],
)
def test_an_argument_of_the_wrong_type_is_rejected_with_its_path(annotation, value, where):
    with pytest.raises(JobSpecError) as caught:
        sent(taking(annotation), value)

    assert caught.value.argument == where
    assert caught.value.code == "22023"


@pytest.mark.feature("F54")
def test_the_path_in_a_whole_payload_begins_at_the_payload():
    def task(items: list[Item], /): ...

    with pytest.raises(JobSpecError) as caught:
        sent(task, [Item("a"), {"name": 7}])

    assert caught.value.argument == "payload[1].name"


@pytest.mark.parametrize("value", [b"bytes", float("nan"), datetime(2030, 1, 1), object(), {1: 2}])
def test_values_that_json_cannot_represent_are_rejected_without_annotations_too(value):
    def task(to): ...

    with pytest.raises(JobSpecError) as caught:
        sent(task, to=value)

    assert caught.value.argument == "payload"


def test_an_error_does_not_quote_the_argument():
    def task(to: int): ...

    with pytest.raises(JobSpecError) as caught:
        sent(task, SECRET)

    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), (("a", "b", "c"), {}), (("a",), {"to": "b"}), (("a",), {"x": 1})]
)
def test_a_call_with_wrong_arguments_raises_type_error(send_email, args, kwargs):
    with pytest.raises(TypeError):
        send_email.spec(*args, **kwargs)


@pytest.mark.feature("F54")
async def test_nothing_is_added_when_an_argument_has_the_wrong_type(app, send_email):
    with pytest.raises(JobSpecError):
        await send_email.aenqueue(7)

    assert app.added == []


# Round trips


@pytest.mark.feature("F116")
@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (datetime, datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC)),
        (date, date(2030, 1, 2)),
        (UUID, UUID(int=7)),
        (Decimal, Decimal("1.10")),
        (Colour, Colour.BLUE),
        (Literal["a", 1], 1),
        (Item, Item("a", 2)),
        (Order, Order(UUID(int=1), datetime(2030, 1, 1, tzinfo=UTC), [Item("b")])),
        (Resize, {"path": "x", "width": 1}),
        (Point, Point(1, 2)),
        (tuple[int, str], (1, "a")),
        (set[Colour], {Colour.RED}),
        (dict[str, list[date]], {"a": [date(2030, 1, 1)]}),
        (int | None, None),
        (datetime | str, "soon"),
    ],
)
def test_an_argument_survives_the_round_trip(annotation, value):
    returned = called(taking(annotation), value)

    assert returned == value
    assert type(returned) is type(value)


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
moments = st.datetimes(timezones=st.just(UTC))
items = st.builds(Item, texts, st.integers())
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=10,
)


def everything(
    text: str,
    number: int,
    share: float,
    moment: datetime,
    day: date,
    id: UUID,
    price: Decimal,
    colour: Colour,
    items: list[Item],
    by_name: dict[str, Item | None],
    anything: Any = None,
    **rest: int,
): ...


@pytest.mark.feature("F116")
@given(
    st.fixed_dictionaries(
        {
            "text": texts,
            "number": st.integers(),
            "share": st.floats(allow_nan=False, allow_infinity=False),
            "moment": moments,
            "day": st.dates(),
            "id": st.uuids(),
            "price": st.decimals(allow_nan=False, allow_infinity=False),
            "colour": st.sampled_from(Colour),
            "items": st.lists(items),
            "by_name": st.dictionaries(texts, st.none() | items),
        },
        optional={"anything": json_values, "more": st.integers(), "a-b": st.integers()},
    )
)
def test_any_arguments_survive_the_round_trip(arguments):
    signature = Signature(everything)

    payload = signature.build_payload([], arguments)

    assert json.loads(json.dumps(payload)) == payload
    assert signature.read_arguments(payload) == ([], arguments)


@pytest.mark.feature("F116", "F122")
@given(json_values.filter(lambda value: value is not None))
def test_any_whole_payload_survives_the_round_trip(value):
    def task(payload, /): ...

    signature = Signature(task)

    assert signature.read_arguments(signature.build_payload([value], {})) == ([value], {})


# Tasks


@pytest.mark.feature("F130")
def test_a_task_can_be_called_as_a_function(send_email):
    assert send_email("ada") == "Hello, ada"
    assert send_email.fn("ada", subject="Hi") == "Hi, ada"


@pytest.mark.feature("F130")
async def test_an_async_task_can_be_called_as_a_function(app):
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    assert await double(2) == 4


@pytest.mark.feature("F130")
def test_a_task_with_a_context_is_called_with_a_context():
    router: TaskRouter[Deps] = TaskRouter()

    @router.task
    def show(ctx: SyncJobContext[Deps], to: str) -> tuple[object, str]:
        return ctx, to

    assert show.fn("a context of the test's own", "ada") == ("a context of the test's own", "ada")


@pytest.mark.feature("F116")
def test_the_identifier_is_the_name_of_the_function_or_the_option_name(app, send_email):
    named = app.task(name="emails/send")(lambda to: None)

    assert send_email.identifier == "send_email"
    assert named.identifier == "emails/send"
    assert list(app.tasks()) == ["send_email", "emails/send"]
    assert repr(named) == "<Task emails/send>"


@pytest.mark.feature("F56")
def test_spec_returns_the_job_as_a_value(send_email):
    assert send_email.spec("ada") == JobSpec("send_email", {"to": "ada"})


@pytest.mark.feature("F54")
async def test_both_ways_to_enqueue_add_the_same_spec(app, send_email):
    await asyncio.to_thread(send_email.enqueue, "ada", subject="Hi")
    await send_email.aenqueue(to="ada", subject="Hi")

    spec = JobSpec("send_email", {"to": "ada", "subject": "Hi"})
    assert app.added == [(spec, None), (spec, None)]


@pytest.mark.feature("F56")
def test_the_options_of_a_task_are_those_of_its_jobs(app):
    @app.task(queue_name="slow", priority=5, max_attempts=3)
    def task(): ...

    assert task.spec() == JobSpec("task", {}, queue_name="slow", priority=5, max_attempts=3)


def test_other_options_of_a_task_do_not_reach_its_jobs(app):
    retry = Backoff()

    @app.task(retry=retry, timeout=timedelta(minutes=1), run_in="loop")
    def task(): ...

    assert task.options == TaskOptions(retry=retry, timeout=timedelta(minutes=1), run_in="loop")
    assert task.spec() == JobSpec("task", {})


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 5},
        {"retry": 5},
        {"run_in": "fork"},
        {"max_attempts": 0},
        {"priority": "high"},
        {"queue_name": "x" * 129},
        {"queue": "slow"},
    ],
)
def test_an_invalid_option_of_a_task_is_rejected_at_the_definition(app, options):
    with pytest.raises((ConfigurationError, JobSpecError, TypeError)):
        app.task(**options)(lambda: None)

    assert app.tasks() == {}


OPTIONS: dict[str, Any] = {
    "queue_name": "fast",
    "run_at": timedelta(hours=1),
    "max_attempts": 7,
    "priority": 0,
    "job_key": "key",
    "job_key_mode": "preserve_run_at",
    "flags": ["a"],
    "shard_key": "tenant",
    "unique": "report",
    "unique_for": timedelta(days=1),
}
# A job has a job key or a unique key.
WITH_JOB_KEY = {name: OPTIONS[name] for name in OPTIONS if not name.startswith("unique")}
WITH_UNIQUE = {name: OPTIONS[name] for name in OPTIONS if not name.startswith("job_key")}


@pytest.mark.feature("F45", "F56")
def test_using_sets_any_of_the_job_options(send_email):
    assert list(OPTIONS) == JOB_OPTIONS

    for options in (WITH_JOB_KEY, WITH_UNIQUE):
        spec = send_email.using(**options).spec("ada")
        assert spec == JobSpec("send_email", {"to": "ada"}, **options)


@pytest.mark.feature("F56")
@pytest.mark.parametrize("option", JOB_OPTIONS)
def test_using_sets_one_option_and_keeps_the_others(send_email, option):
    given = {option: OPTIONS[option]}
    if option.startswith("unique"):
        given = {name: OPTIONS[name] for name in ("unique", "unique_for")}

    assert send_email.using(**given).spec("ada") == JobSpec("send_email", {"to": "ada"}, **given)


@pytest.mark.feature("F56")
def test_using_takes_precedence_over_the_options_of_the_task_zero_included(app):
    @app.task(queue_name="slow", priority=5, max_attempts=3)
    def task(): ...

    found = task.using(priority=0, queue_name="fast").spec()

    assert found == JobSpec("task", {}, queue_name="fast", priority=0, max_attempts=3)


@pytest.mark.feature("F56")
def test_using_can_be_chained_and_the_last_value_counts(send_email):
    once = send_email.using(priority=1, job_key="a")

    again = once.using(priority=2, flags=["x"])

    assert again.spec("ada") == JobSpec(
        "send_email", {"to": "ada"}, priority=2, job_key="a", flags=["x"]
    )
    assert once.spec("ada").priority == 1


@pytest.mark.feature("F56")
def test_using_does_not_change_the_task_itself(app, send_email):
    send_email.using(conn=object(), **WITH_JOB_KEY)

    send_email.enqueue("ada")

    assert app.added == [(JobSpec("send_email", {"to": "ada"}), None)]
    assert app.tasks()["send_email"] is send_email


@pytest.mark.feature("F39", "F54")
async def test_using_passes_the_connection(app, send_email):
    first, second = object(), object()
    task = send_email.using(conn=first)

    await task.using(priority=1).aenqueue("ada")
    await task.using(conn=second).aenqueue("ada")

    assert [conn for _, conn in app.added] == [first, second]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("queue_name", "x" * 129),
        ("run_at", datetime(2030, 1, 1)),
        ("run_at", 5),
        ("max_attempts", 0),
        ("priority", 40_000),
        ("job_key", ""),
        ("job_key_mode", "upsert"),
        ("flags", "text"),
    ],
)
def test_an_invalid_option_is_rejected_by_using(send_email, option, value):
    with pytest.raises(JobSpecError) as caught:
        send_email.using(**{option: value})

    assert caught.value.argument == option


# One signature for adding


@pytest.mark.feature("F45")
@pytest.mark.parametrize("name", ["add_job", "add_jobs", "remove_job", "migrate"])
def test_async_methods_of_an_app_have_the_prefix_a(name):
    blocking, awaited = getattr(App, name), getattr(App, f"a{name}")

    assert inspect.signature(blocking) == inspect.signature(awaited)
    assert inspect.signature(blocking) == inspect.signature(getattr(Client, name))
    assert inspect.iscoroutinefunction(awaited)
    assert not inspect.iscoroutinefunction(blocking)


# Routers


def named(identifier: str) -> Callable[[], None]:
    def task() -> None: ...

    task.__name__ = identifier
    return task


def test_two_tasks_with_the_same_name_are_rejected(app):
    app.task(named("a"))

    with pytest.raises(ConfigurationError, match="two tasks are named 'a'"):
        app.task(named("a"))


def test_a_router_puts_its_prefix_before_the_names_of_its_tasks():
    router: TaskRouter[None] = TaskRouter(prefix="billing/")

    router.task(named("charge"))
    router.task(name="refund")(named("anything"))

    assert list(router.tasks()) == ["billing/charge", "billing/refund"]
    assert router.tasks()["billing/charge"].spec() == JobSpec("billing/charge", {})


def test_an_included_router_keeps_its_prefix(app):
    outer: TaskRouter[None] = TaskRouter(prefix="outer/")
    inner: TaskRouter[None] = TaskRouter(prefix="inner/")
    inner.task(named("a"))

    outer.include(inner)
    app.include(outer)

    assert list(app.tasks()) == ["inner/a"]


def test_an_app_has_the_tasks_of_its_routers_whenever_they_were_defined(app):
    router, nested = TaskRouter[None](), TaskRouter[None]()
    router.task(named("before"))

    app.include(router)
    router.include(nested)
    router.task(named("after"))
    nested.task(named("nested"))

    assert list(app.tasks()) == ["before", "after", "nested"]


def test_routers_may_be_passed_to_the_app():
    routers = [TaskRouter[None](prefix="a/"), TaskRouter[None](prefix="b/")]

    app = App(NOWHERE, include=routers)
    for router in routers:
        router.task(named("task"))

    assert list(app.tasks()) == ["a/task", "b/task"]


@pytest.mark.feature("F54")
def test_the_tasks_of_a_router_are_added_by_the_app_at_the_root(app):
    outer, inner = TaskRouter[None](), TaskRouter[None]()
    task = inner.task(named("a"))
    outer.include(inner)
    app.include(outer)

    task.enqueue()

    assert app.added == [(JobSpec("a", {}), None)]


def test_a_router_is_included_once(app):
    router: TaskRouter[None] = TaskRouter(prefix="a/")
    app.include(router)

    for other in (app, TaskRouter[None]()):
        with pytest.raises(ConfigurationError, match="already included"):
            other.include(router)


def test_a_router_cannot_include_itself(app):
    outer, inner = TaskRouter[None](), TaskRouter[None]()
    outer.include(inner)

    for includer, included in [(outer, outer), (inner, outer), (inner, inner)]:
        with pytest.raises(ConfigurationError, match="already included"):
            includer.include(included)


def test_a_router_whose_names_exist_is_rejected_and_unchanged(app):
    app.task(named("a"))
    router = TaskRouter[None]()
    router.task(named("a"))

    with pytest.raises(ConfigurationError, match="two tasks are named 'a'"):
        app.include(router)

    assert list(app.tasks()) == ["a"]
    other = App[None](NOWHERE)
    other.include(router)
    assert list(other.tasks()) == ["a"]


def test_a_name_of_another_router_is_rejected_at_the_definition(app):
    first, second = TaskRouter[None](), TaskRouter[None]()
    app.include(first, second)
    first.task(named("a"))

    for router in (app, second):
        with pytest.raises(ConfigurationError, match="two tasks are named 'a'"):
            router.task(named("a"))


async def test_a_task_without_an_app_raises_with_a_remedy():
    task = TaskRouter[None](prefix="a/").task(named("task"))

    assert task.spec().identifier == "a/task"
    with pytest.raises(ConfigurationError, match=r"app\.include\(router\)"):
        await task.aenqueue()
    with pytest.raises(ConfigurationError, match="<TaskRouter prefix='a/'>"):
        await asyncio.to_thread(task.enqueue)


# Calls that block an event loop


@pytest.fixture
def nothing_told_yet(monkeypatch) -> None:
    """Forget the warnings of an earlier run of the same test."""
    monkeypatch.setattr(tasks.task, "_warned_call_sites", set())


def warnings(caplog) -> list[str]:
    found = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert all(each.name == "graphile_worker" for each in found)
    return [each.getMessage() for each in found]


@pytest.mark.usefixtures("nothing_told_yet")
async def test_a_call_that_blocks_the_event_loop_is_logged_once(app, send_email, caplog):
    for _ in range(3):
        send_email.enqueue("ada")

    (message,) = warnings(caplog)
    assert message.startswith(f"{__file__}:")
    assert message.endswith("blocks the event loop: await send_email.aenqueue(…)")
    assert len(app.added) == 3


@pytest.mark.usefixtures("nothing_told_yet")
async def test_each_call_site_that_blocks_the_event_loop_is_logged(send_email, caplog):
    send_email.enqueue("ada")
    send_email.using(priority=1).enqueue("ada")

    assert len(set(warnings(caplog))) == 2


def test_without_an_event_loop_nothing_is_logged(send_email, caplog):
    send_email.enqueue("ada")

    assert warnings(caplog) == []


async def test_a_thread_beside_an_event_loop_does_not_block_it(send_email, caplog):
    await asyncio.to_thread(send_email.enqueue, "ada")
    await send_email.aenqueue("ada")

    assert warnings(caplog) == []


# Definitions open no connection


@pytest.mark.parametrize("dsn", [NOWHERE, "not a connection string", "host=nowhere port=x", ""])
def test_creating_an_app_does_not_connect(dsn):
    app = App(dsn)

    @app.task
    def task(to: str): ...

    assert task.spec("ada").payload == {"to": "ada"}
    assert list(app.tasks()) == ["task"]


def test_defining_tasks_opens_no_socket_and_starts_no_thread():
    code = (
        "import socket, threading\n"
        "socket.socket.connect = socket.create_connection = None\n"
        "from graphile_worker import App\n"
        "app = App('postgres://127.0.0.1:1/nowhere')\n"
        "@app.task\n"
        "def task(to: str): ...\n"
        "print(threading.active_count(), task.spec('ada').identifier)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.stdout.split() == ["1", "task"], done.stderr


def at_the_top(name: str) -> None: ...


async def with_context(ctx: JobContext[Any], name: str) -> None: ...


def test_a_function_at_the_top_of_a_module_may_run_in_a_process(app):
    task = app.task(run_in="process")(at_the_top)

    assert task.runs_in_process
    assert task.is_cancellable


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda name: None, "must find it by its name"),
        (functools.partial(at_the_top, "x"), "must find it by its name"),
        (with_context, "no context is available"),
    ],
)
def test_a_function_that_another_process_cannot_find_is_rejected(app, fn, words):
    with pytest.raises(ConfigurationError, match=words):
        app.task(name="task", run_in="process")(fn)


def test_a_function_inside_another_cannot_run_in_a_process(app):
    def inside() -> None: ...

    with pytest.raises(ConfigurationError, match="at the top of a module"):
        app.task(run_in="process")(inside)


# A mode without a key


@pytest.fixture
def no_mode_told_yet(monkeypatch) -> None:
    monkeypatch.setattr("graphile_worker.tasks.task._warned_mode_subjects", set())


@pytest.mark.usefixtures("no_mode_told_yet")
def test_using_warns_once_about_a_mode_without_a_key(app, send_email, caplog):
    later = send_email.using(job_key_mode="preserve_run_at")

    later.using(job_key="k").enqueue("ada")
    assert warnings(caplog) == []
    for _ in range(3):
        later.enqueue("ada")
    assert warnings(caplog) == [
        "task send_email: job_key_mode='preserve_run_at' has no effect without a job_key"
    ]
    assert len(app.added) == 4


@pytest.mark.usefixtures("no_mode_told_yet")
def test_a_cron_item_warns_once_about_a_mode_without_a_key(app, caplog):
    @app.cron("* * * * *", job_key_mode="replace")
    @app.cron("* * * * *", id="keyed", job_key="k", job_key_mode="replace")
    @app.task
    def rollup() -> None: ...

    for _ in range(3):
        app.cron_items()
    assert warnings(caplog) == [
        "cron item rollup: job_key_mode='replace' has no effect without a job_key"
    ]


# Methods, and a context without annotation


def test_a_method_is_rejected_with_a_remedy(app):
    def defined_with(*decorators: Any) -> None:
        class Mailer:
            def send(self, to: str) -> None: ...

            for decorate in decorators:
                send = decorate(send)

    with pytest.raises(ConfigurationError) as caught:
        defined_with(app.task)
    assert str(caught.value).endswith(
        "Mailer.send: a method cannot be a task, because a worker has nothing to pass as 'self'. "
        "Define the task as a function outside the class, or remove 'self' and write "
        "@staticmethod above the line that makes it a task."
    )
    for decorators in ([app.task(name="a")], [app.batch_task], [classmethod, app.task]):
        with pytest.raises(ConfigurationError, match="a method cannot be a task"):
            defined_with(*decorators)
    assert app.tasks() == {}


def test_static_and_bound_methods_may_be_tasks(app):
    class Mailer:
        @staticmethod
        @app.task
        def send(to: str) -> None: ...

        @app.task
        @staticmethod
        def receive(to: str) -> None: ...

        def forward(self, to: str) -> None: ...

    app.task(Mailer().forward)

    assert [each.spec("ada").payload for each in app.tasks().values()] == [{"to": "ada"}] * 3


def test_a_context_without_annotation_is_rejected_with_a_remedy(app):
    def first(ctx, to: str): ...

    def last(to: str, ctx=None): ...

    def alone(ctx, /): ...

    for fn in (first, last, alone):
        with pytest.raises(ConfigurationError) as caught:
            app.task(fn)
        assert str(caught.value).endswith(
            f"{fn.__name__}: parameter 'ctx' has no annotation, so it would be a key of the "
            "payload. Make it the first parameter and annotate it as `ctx: SyncJobContext` to "
            "receive the context. If it is a key, annotate it with the type of its value."
        )

    def key(ctx: dict[str, int]): ...

    assert app.task(key).spec({"a": 1}).payload == {"ctx": {"a": 1}}


# Messages


def test_payload_errors_name_task_and_parameter(app):
    @app.task(name="mail/send")
    def send(to: str, count: int = 1, at: UUID | None = None, size: tuple[int, int] = (1, 1)): ...

    @app.task
    def resize(item: Item, /): ...

    @app.batch_task
    def points(items: list[int]): ...

    def told(call: Callable[[], object]) -> str:
        with pytest.raises(JobSpecError) as caught:
            call()
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        return str(caught.value)

    wrong: Any = send
    assert told(lambda: wrong.spec(7)) == 'mail/send: "to" must be str, got int'
    assert told(lambda: wrong.spec("a", at="b")) == 'mail/send: "at" is not the text of a UUID'
    assert told(lambda: wrong.spec("a", size=[1])) == 'mail/send: "size": expected 2 items, got 1'
    assert told(lambda: wrong.spec(b"a")) == (
        'mail/send: "to": bytes has no JSON form: convert it, for example to str'
    )
    assert told(lambda: app.completed(JobSpec("mail/send"))) == 'mail/send: "to" is missing'
    assert told(lambda: app.completed(JobSpec("mail/send", []))) == (
        "mail/send: the payload must be an object with the parameters as keys, got list"
    )
    assert told(lambda: resize.spec({"name": 1})) == 'resize: "name" must be str, got int'
    assert told(lambda: points.spec([1, "2"])) == "points: payload[1] must be int, got str"
    assert told(lambda: points.spec("12")) == "points: the payload must be a list of items"
    with pytest.raises(TypeError, match=r"^mail/send: missing a required argument: 'to'$"):
        wrong.spec()


def test_a_worker_and_an_enqueue_report_a_mismatch_in_the_same_words(app, send_email):
    with pytest.raises(Mismatch) as caught:
        send_email.signature.build_call_arguments({"to": 7}, None)

    assert str(caught.value) == 'send_email: "to" must be str, got int'
    with pytest.raises(Mismatch, match=r'^other: "to" is missing$'):
        send_email.with_identifier("other").signature.build_call_arguments({}, None)
