"""Batch tasks: their functions, their items, and the items that fail."""

import pickle
from collections import deque
from datetime import timedelta
from typing import Any, TypedDict

import pytest

from graphile_worker import (
    BatchTask,
    ConfigurationError,
    JobSpecError,
    PartialFailure,
    SyncJobContext,
)
from graphile_worker._payloads import Mismatch
from graphile_worker.jobs import JobSpec
from graphile_worker.tasks import TaskRouter
from graphile_worker.tasks.batch import BatchSignature
from graphile_worker.tasks.signatures import PositionalSignature

TROUBLE = ValueError("trouble")


class Point(TypedDict):
    x: int


async def points(items: list[Point]) -> None: ...


def with_context(ctx: SyncJobContext, items: list[int]) -> None: ...


class Enqueuer:
    """Records the specs that it would add."""

    def __init__(self) -> None:
        self.added: list[tuple[JobSpec, object]] = []

    def enqueue(self, spec: JobSpec, conn: object = None, read_result: Any = None) -> Any:
        self.added.append((spec, conn))

    async def aenqueue(self, spec: JobSpec, conn: object = None, read_result: Any = None) -> Any:
        self.added.append((spec, conn))


@pytest.fixture
def enqueuer(monkeypatch) -> Enqueuer:
    it = Enqueuer()
    monkeypatch.setattr(TaskRouter, "find_enqueuer", lambda self: it)
    return it


# Definition


@pytest.mark.parametrize("fn", [points, with_context])
def test_batch_task_works_with_and_without_parentheses(fn):
    tasks: TaskRouter[None] = TaskRouter(prefix="shop/")

    bare, named = tasks.batch_task(fn), tasks.batch_task(name="other", max_attempts=3)(fn)

    assert isinstance(bare, BatchTask)
    assert isinstance(named, BatchTask)
    assert [bare.identifier, named.identifier] == [f"shop/{fn.__name__}", "shop/other"]
    assert named.options.max_attempts == 3
    assert bare.fn is fn


def none() -> None: ...


def two(items: list[int], more: int = 0) -> None: ...


def handle_items(**items: int) -> None: ...


def defaulted(items: list[int] = []) -> None: ...  # noqa: B006


@pytest.mark.parametrize("fn", [none, two, handle_items, defaulted])
def test_a_function_without_one_items_parameter_is_rejected(fn):
    with pytest.raises(ConfigurationError, match="takes its items in one parameter"):
        TaskRouter[None]().batch_task(fn)


# Adding


@pytest.mark.feature("F61")
def test_items_become_one_job_whose_payload_is_an_array(enqueuer):
    task = TaskRouter[None]().batch_task(points)

    task.enqueue([{"x": 1}, {"x": 2}])
    task.using(priority=3).enqueue(({"x": 3},))  # any sequence

    assert [spec.payload for spec, _ in enqueuer.added] == [[{"x": 1}, {"x": 2}], [{"x": 3}]]
    assert enqueuer.added[1][0].priority == 3


@pytest.mark.parametrize("items", ["abc", {"x": 1}, 5, None])
def test_values_that_are_not_lists_are_rejected(enqueuer, items):
    with pytest.raises(JobSpecError, match="must be a list of items"):
        TaskRouter[None]().batch_task(points).enqueue(items)


def test_an_item_of_the_wrong_type_is_rejected_with_its_position(enqueuer):
    items: Any = [{"x": 1}, {"x": "2"}]

    with pytest.raises(JobSpecError, match=r"payload\[1\]\.x") as refused:
        TaskRouter[None]().batch_task(points).enqueue(items)

    assert isinstance(refused.value.__cause__, Mismatch)


@pytest.mark.feature("F61")
async def test_accumulate_collects_items_under_a_key_with_preserve_run_at(enqueuer):
    task = TaskRouter[None]().batch_task(points)
    within = timedelta(seconds=10)

    task.using(queue_name="slow", conn="mine").accumulate({"x": 1}, {"x": 2}, key="k", delay=within)
    await task.aaccumulate({"x": 3}, key="k", delay=within, conn="yours")

    (first, mine), (second, yours) = enqueuer.added
    assert (first.payload, second.payload) == ([{"x": 1}, {"x": 2}], [{"x": 3}])
    for spec in (first, second):
        assert (spec.job_key, spec.job_key_mode, spec.run_at) == ("k", "preserve_run_at", within)
    assert (first.queue_name, mine, yours) == ("slow", "mine", "yours")


def test_the_delay_of_accumulate_is_a_timedelta(enqueuer):
    wrong: Any = 10

    with pytest.raises(ConfigurationError, match="delay must be a timedelta, got 10"):
        TaskRouter[None]().batch_task(points).accumulate({"x": 1}, key="k", delay=wrong)


# Reading


def test_unreadable_items_are_left_out_and_their_positions_kept():
    signature = BatchSignature(with_context)

    (context, items), kwargs = signature.build_call_arguments([1, "two", 3, None], "context")

    assert (context, items, kwargs) == ("context", [1, 3], {})
    assert errors_of(signature, [context, items], None) == {
        1: "[1]: expected int, got str",
        3: "[3]: expected int, got None",
    }


def test_the_task_does_not_receive_the_trace_of_an_item():
    payload: list[Any] = [{"x": 1, "_trace": {"flags": 1}, "_id": 7}, {"x": 2}]

    [items], _ = BatchSignature(points).read_arguments(payload)

    assert items == [{"x": 1, "_id": 7}, {"x": 2}]
    assert "_trace" in payload[0]


def test_a_batch_without_readable_items_is_a_mismatch():
    with pytest.raises(
        Mismatch, match=r": payload\[0\] must be int, got str; no other item fits either$"
    ):
        BatchSignature(with_context).build_call_arguments(["one", "two"], None)


def test_an_empty_batch_is_valid():
    assert BatchSignature(points).build_call_arguments([], None) == ([[]], {})


@pytest.mark.parametrize("payload", [{}, "text", 5])
def test_a_payload_that_is_not_an_array_is_a_mismatch(payload):
    with pytest.raises(Mismatch, match="must be an array of items"):
        BatchSignature(points).build_call_arguments(payload, None)


# Outcomes


def errors_of(signature: Any, args: list[Any], result: Any) -> dict[int, str]:
    batch = signature.get_batch(args)
    failed = isinstance(result, PartialFailure)
    errors = batch.read_partial_failure(result) if failed else batch.read_result(result)
    return {at: str(error) for at, error in errors.items()}


@pytest.mark.feature("F120")
@pytest.mark.parametrize(
    ("result", "failed"),
    [
        (None, {1}),
        ([None, None], {1}),
        ([None, TROUBLE], {1, 2}),
        ((TROUBLE, TROUBLE), {0, 1, 2}),
        (deque([TROUBLE, None]), {0, 1}),
        ("ab", {1}),
        (PartialFailure({1: TROUBLE}), {1, 2}),
        (PartialFailure({}), {1}),
    ],
)
def test_outcomes_belong_to_the_items_that_the_task_received(result, failed):
    signature = BatchSignature(with_context)
    args, _ = signature.build_call_arguments([1, "two", 3], None)

    assert set(errors_of(signature, args, result)) == failed


@pytest.mark.feature("F120")
def test_a_wrong_number_of_outcomes_is_a_warning_and_counts_as_success(caplog):
    signature = BatchSignature(with_context)
    args, _ = signature.build_call_arguments([1, 2, 3], None)

    assert errors_of(signature, args, [TROUBLE]) == {}
    assert "3 items, 1 outcomes" in caplog.text


@pytest.mark.feature("F120")
@pytest.mark.parametrize(
    ("result", "failed"),
    [
        ([None, TROUBLE], {1}),
        (PartialFailure({0: TROUBLE}), {0}),
        ("anything", set()),
        (None, set()),
    ],
)
def test_a_positional_task_with_an_array_is_a_batch(result, failed):
    signature = PositionalSignature(lambda payload, ctx: None)
    args, _ = signature.build_call_arguments([1, 2], None)

    assert set(errors_of(signature, args, result)) == failed


def test_a_positional_task_without_an_array_has_no_batch():
    signature = PositionalSignature(lambda payload: None)

    assert signature.get_batch([{"a": 1}]) is None
    assert signature.get_batch([]) is None


# PartialFailure


def test_a_partial_failure_has_the_message_of_node():
    failure = PartialFailure({5: ValueError("second"), 2: KeyError(), 1: ValueError("first")})

    assert list(failure.errors) == [1, 2, 5]
    assert str(failure) == "Batch failures:\nfirst\nKeyError\nsecond"
    assert str(pickle.loads(pickle.dumps(failure))) == str(failure)


def test_a_partial_failure_checks_its_values():
    cases: list[tuple[Any, str]] = [
        ({0: "bad row"}, "takes an exception for item 0, got 'bad row'"),
        ({0: ValueError}, "takes an exception for item 0"),
        ({0: None}, "takes an exception for item 0"),
        ({"0": ValueError()}, "takes indexes of items, got '0'"),
        ({True: ValueError()}, "takes indexes of items, got True"),
        ([ValueError()], "takes errors by the index of their item"),
    ]
    for errors, reason in cases:
        with pytest.raises(ConfigurationError, match=reason):
            PartialFailure(errors)


def test_a_batch_task_cannot_be_scheduled_without_an_array():
    tasks: TaskRouter[None] = TaskRouter()

    with pytest.raises(ConfigurationError, match="must be an array of items"):
        tasks.cron("* * * * *")(tasks.batch_task(points))
