"""How plans are carried out: results go in, errors are thrown in, the end comes back."""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from graphile_worker._db.database import (
    drive,
    drive_sync,
    run_plan,
    run_plan_on,
    run_plan_sync,
    run_plan_sync_on,
    with_retries,
    with_retries_sync,
)
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.query import Atomic, Pause, Plan, Query, Step


def ask(name: str) -> Query[Any]:
    return Query(name)


class Conflict(Exception):
    sqlstate = "40001"


class Recorder:
    """A database for both worlds that answers with what it was asked, or raises."""

    schemas = Schemas.from_names("jobs")

    def __init__(self, *errors: Exception) -> None:
        self.seen: list[str] = []
        self._errors = list(errors)

    def answer(self, query: Query[Any]) -> Any:
        self.seen.append(str(query.statement))
        if self._errors:
            raise self._errors.pop(0)
        return f"answer to {str(query.statement)}"


class AsyncDatabase(Recorder):
    async def run(self, query: Query[Any]) -> Any:
        return self.answer(query)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        self.seen.append("begin")
        yield self
        self.seen.append("commit")

    async def close(self) -> None:
        pass


class BlockingDatabase(Recorder):
    def run(self, query: Query[Any]) -> Any:
        return self.answer(query)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        self.seen.append("begin")
        yield self
        self.seen.append("commit")

    def close(self) -> None:
        pass


async def carried_out(plan: Plan[Any], act: Any, kind: str) -> Any:
    if kind == "blocking":
        return drive_sync(plan, act)

    async def act_async(step: Step) -> Any:
        return act(step)

    return await drive(plan, act_async)


async def performed(plan: Plan[Any], kind: str, *errors: Exception) -> tuple[Any, list[str]]:
    if kind == "blocking":
        blocking = BlockingDatabase(*errors)
        return run_plan_sync(blocking, plan), blocking.seen
    database = AsyncDatabase(*errors)
    return await run_plan(database, plan), database.seen


async def performed_on(plan: Plan[Any], kind: str) -> Any:
    if kind == "blocking":
        return run_plan_sync_on(BlockingDatabase(), plan)
    return await run_plan_on(AsyncDatabase(), plan)


both_kinds = pytest.mark.parametrize("kind", ["async", "blocking"])


@both_kinds
async def test_a_plan_is_sent_the_answer_to_each_step(kind):
    def plan() -> Plan[list[str]]:
        return [(yield ask("one")), (yield ask("two"))]

    assert await carried_out(plan(), lambda step: str(step.statement).upper(), kind) == [
        "ONE",
        "TWO",
    ]


@both_kinds
async def test_a_plan_without_steps_returns_at_once(kind):
    def plan() -> Plan[int]:
        yield from ()
        return 7

    assert await carried_out(plan(), None, kind) == 7


@both_kinds
async def test_a_plan_sees_the_errors_of_its_steps_and_may_go_on(kind):
    def plan() -> Plan[str]:
        try:
            yield ask("one")
        except ValueError as error:
            return f"went on after {error}"
        return "no error"

    def act(step: Step) -> None:
        raise ValueError("boom")

    assert await carried_out(plan(), act, kind) == "went on after boom"


@both_kinds
async def test_an_error_that_a_plan_does_not_expect_reaches_the_caller_itself(kind):
    def plan() -> Plan[None]:
        yield ask("one")

    boom = ValueError("boom")

    def act(step: Step) -> None:
        raise boom

    with pytest.raises(ValueError, match="boom") as caught:
        await carried_out(plan(), act, kind)
    assert caught.value is boom


@both_kinds
async def test_what_stops_the_program_is_not_shown_to_plans(kind):
    seen = []

    def plan() -> Plan[None]:
        try:
            yield ask("one")
        except Exception as error:
            seen.append(error)

    def act(step: Step) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await carried_out(plan(), act, kind)
    assert seen == []


@both_kinds
async def test_queries_that_belong_together_are_one_transaction(kind):
    def plan() -> Plan[Any]:
        return (yield Atomic((ask("one"), ask("two"))))

    answer, seen = await performed(plan(), kind)

    assert answer == ["answer to one", "answer to two"]
    assert seen == ["begin", "one", "two", "commit"]


@both_kinds
async def test_each_other_query_stands_on_its_own(kind):
    def plan() -> Plan[Any]:
        yield ask("one")
        yield Pause(0.0)
        return (yield ask("two"))

    answer, seen = await performed(plan(), kind)

    assert answer == "answer to two"
    assert seen == ["one", "two"]


@both_kinds
async def test_an_error_within_a_transaction_ends_it_and_is_shown_to_the_plan(kind):
    def plan() -> Plan[Any]:
        try:
            yield Atomic((ask("one"), ask("two")))
        except ValueError:
            return (yield ask("three"))

    answer, seen = await performed(plan(), kind, ValueError("boom"))

    assert answer == "answer to three"
    assert seen == ["begin", "one", "three"]


@pytest.mark.feature("F39")
@both_kinds
@pytest.mark.parametrize("step", [Atomic((ask("one"),)), Pause(0.0)])
async def test_a_callers_connection_is_never_given_transactions_or_pauses(kind, step):
    def plan() -> Plan[None]:
        yield step

    with pytest.raises(TypeError, match=f"{type(step).__name__} cannot be done inside"):
        await performed_on(plan(), kind)


@both_kinds
async def test_a_callers_connection_answers_queries(kind):
    def plan() -> Plan[Any]:
        return (yield ask("one"))

    assert await performed_on(plan(), kind) == "answer to one"


async def test_a_conflict_with_another_session_is_retried():
    database = AsyncDatabase(Conflict(), Conflict())

    assert await with_retries(lambda: database.run(ask("one"))) == "answer to one"
    assert database.seen == ["one", "one", "one"]


def test_a_conflict_on_a_blocking_connection_is_retried(monkeypatch):
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    database = BlockingDatabase(Conflict(), Conflict())

    assert with_retries_sync(lambda: database.run(ask("one"))) == "answer to one"
    assert len(pauses) == 2


async def test_a_transaction_is_retried_as_a_whole():
    database = AsyncDatabase(Conflict())

    def plan() -> Plan[Any]:
        return (yield Atomic((ask("one"), ask("two"))))

    assert await run_plan(database, plan()) == ["answer to one", "answer to two"]
    assert database.seen == ["begin", "one", "begin", "one", "two", "commit"]


def test_a_blocking_transaction_is_retried_as_a_whole():
    database = BlockingDatabase(Conflict())

    def plan() -> Plan[Any]:
        return (yield Atomic((ask("one"), ask("two"))))

    assert run_plan_sync(database, plan()) == ["answer to one", "answer to two"]
    assert database.seen == ["begin", "one", "begin", "one", "two", "commit"]
