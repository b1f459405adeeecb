"""Every function that adds jobs takes the same options, and both clients have the same methods."""

import inspect
import typing
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, Unpack

import pytest

import graphile_worker
from graphile_worker import (
    App,
    JobContext,
    JobOptions,
    JobSpec,
    Runner,
    SyncJobContext,
    Task,
    client,
    sync,
)
from graphile_worker._worker.context import Context, SyncContext
from tests.support.options import JOB_OPTIONS

NOWHERE = "postgres://nobody@127.0.0.1:1/nowhere"
FUNCTIONS = ["run_migrations", "make_worker_utils", "add_job_adhoc", "quick_add_job"]
ADDERS: dict[str, Callable[..., Any]] = {
    "Client": client.Client.add_job,
    "sync.Client": sync.Client.add_job,
    "add_job_adhoc": client.add_job_adhoc,
    "quick_add_job": client.quick_add_job,
    "sync.add_job_adhoc": sync.add_job_adhoc,
    "sync.quick_add_job": sync.quick_add_job,
    "App.add_job": App.add_job,
    "App.aadd_job": App.aadd_job,
    "Runner": Runner.add_job,
    "JobContext": JobContext.add_job,
    "SyncJobContext": SyncJobContext.add_job,
    "Context": Context.add_job,
    "SyncContext": SyncContext.add_job,
    "Task.using": Task.using,
}


def public_methods(kind: type) -> list[str]:
    return [name for name in vars(kind) if not name.startswith("_")]


METHODS = public_methods(client.Client)


@pytest.mark.feature("F10", "F45", "F227")
def test_both_clients_have_the_same_public_names_in_the_same_order():
    assert public_methods(sync.Client) == METHODS


@pytest.mark.feature("F10", "F45")
@pytest.mark.parametrize("name", ["__init__", *METHODS])
def test_a_method_has_one_signature_on_both_clients(name):
    method, blocking = getattr(client.Client, name), getattr(sync.Client, name)

    assert signature(method) == signature(blocking)


@pytest.mark.feature("F10")
@pytest.mark.parametrize("name", METHODS)
def test_what_is_awaited_on_one_client_is_plain_on_the_other(name):
    assert inspect.iscoroutinefunction(getattr(client.Client, name))
    assert not inspect.iscoroutinefunction(getattr(sync.Client, name))


@pytest.mark.feature("F10", "F17", "F48", "F52")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_one_signature_in_both_modules(name):
    function, blocking = getattr(client, name), getattr(sync, name)

    assert signature(function) == signature(blocking)
    assert inspect.iscoroutinefunction(function)
    assert not inspect.iscoroutinefunction(blocking)


@pytest.mark.feature("F10", "F48", "F52")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_package_offers_the_async_functions(name):
    assert getattr(graphile_worker, name) is getattr(client, name)


@pytest.mark.feature("F44", "F45")
@pytest.mark.parametrize("adder", ADDERS)
def test_every_function_that_adds_a_job_takes_the_job_options_by_name(adder):
    parameters = inspect.signature(ADDERS[adder]).parameters

    assert parameters["options"].kind is inspect.Parameter.VAR_KEYWORD
    assert typing.get_type_hints(ADDERS[adder])["options"] == Unpack[JobOptions]


@pytest.mark.feature("F44", "F45")
@pytest.mark.parametrize("adder", sorted(set(ADDERS) - {"Task.using"}))
def test_identifier_and_payload_are_positional_and_other_arguments_are_named(adder):
    parameters = inspect.signature(ADDERS[adder]).parameters
    positional = [
        name
        for name, each in parameters.items()
        if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and name not in ("self", "database")
    ]

    assert positional == ["identifier", "payload"]
    assert parameters["payload"].default is None


@pytest.mark.feature("F44", "F45", "F56")
def test_a_spec_has_the_identifier_the_payload_and_the_job_options():
    assert [field.name for field in fields(JobSpec)] == ["identifier", "payload", *JOB_OPTIONS]
    assert all(field.default is None for field in fields(JobSpec)[1:])
    spec_types = typing.get_type_hints(JobSpec)
    assert typing.get_type_hints(JobOptions) == {name: spec_types[name] for name in JOB_OPTIONS}


UNKNOWN_OPTIONS = {
    "queue": "unknown job option 'queue', did you mean 'queue_name'?",
    "run_att": "unknown job option 'run_att', did you mean 'run_at'?",
    "jobKey": "unknown job option 'jobKey', did you mean 'job_key'?",
    "x": f"unknown job option 'x'. Job options: {', '.join(JOB_OPTIONS)}",
}


def build_calls(options: dict[str, Any]) -> list[Callable[[], Any]]:
    app = App(NOWHERE)
    task = app.task(name="task")(lambda: None)
    return [
        partial(client.Client(NOWHERE).add_job, "task", **options),
        partial(sync.Client(NOWHERE).add_job, "task", **options),
        partial(client.add_job_adhoc, NOWHERE, "task", **options),
        partial(sync.add_job_adhoc, NOWHERE, "task", **options),
        partial(app.add_job, "task", **options),
        partial(app.aadd_job, "task", **options),
        partial(task.using, **options),
    ]


async def call(add: Callable[[], Any]) -> None:
    result = add()
    if inspect.isawaitable(result):
        await result


@pytest.mark.feature("F45")
@pytest.mark.parametrize("name", UNKNOWN_OPTIONS)
async def test_an_unknown_option_is_rejected_by_name_before_connecting(name):
    for add in build_calls({name: 1}):
        with pytest.raises(TypeError) as caught:
            await call(add)

        assert str(caught.value) == UNKNOWN_OPTIONS[name]


@pytest.mark.parametrize("name", ["identifier", "payload"])
def test_using_takes_neither_an_identifier_nor_a_payload(name):
    task = App(NOWHERE).task(name="task")(lambda: None)
    options: Any = {name: "x"}

    with pytest.raises(TypeError, match=f"unknown job option '{name}'"):
        task.using(**options)


@pytest.mark.feature("F39")
def test_methods_that_can_join_a_transaction_take_conn():
    separate = {"cleanup", "apply_tuning", "migrate", "check_schema", "close", "release", "result"}

    for name in METHODS:
        takes_it = "conn" in inspect.signature(getattr(client.Client, name)).parameters
        assert takes_it == (name not in separate), name


def test_both_clients_are_context_managers():
    assert hasattr(client.Client, "__aenter__")
    assert hasattr(client.Client, "__aexit__")
    assert hasattr(sync.Client, "__enter__")
    assert hasattr(sync.Client, "__exit__")


def signature(function: Callable[..., Any]) -> tuple[Any, ...]:
    """Names, kinds, defaults and types; each module's Client is called Client."""
    parameters = inspect.signature(function).parameters.values()
    shape = [(each.name, each.kind, each.default) for each in parameters]
    hints = {
        name: "Client" if hint in (client.Client, sync.Client) else hint
        for name, hint in typing.get_type_hints(function).items()
    }
    return shape, hints
