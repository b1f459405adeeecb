"""The same names with the same signatures, awaited or not, wherever a job can be added."""

import inspect
import typing
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

import graphile_worker
from graphile_worker import JobSpec, client, sync

SEVEN_OPTIONS = [
    "queue_name",
    "run_at",
    "max_attempts",
    "priority",
    "job_key",
    "job_key_mode",
    "flags",
]
FUNCTIONS = ["run_migrations", "make_worker_utils", "add_job_adhoc", "quick_add_job"]
ADDERS: dict[str, Callable[..., Any]] = {
    "Client": client.Client.add_job,
    "sync.Client": sync.Client.add_job,
    "add_job_adhoc": client.add_job_adhoc,
    "quick_add_job": client.quick_add_job,
    "sync.add_job_adhoc": sync.add_job_adhoc,
    "sync.quick_add_job": sync.quick_add_job,
    "JobSpec": JobSpec,
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
def test_the_seven_options_stand_everywhere_in_one_order_with_one_type(adder):
    parameters = inspect.signature(ADDERS[adder]).parameters
    expected = typing.get_type_hints(JobSpec)

    found = [name for name in parameters if name in SEVEN_OPTIONS]
    hints = typing.get_type_hints(JobSpec.__init__ if ADDERS[adder] is JobSpec else ADDERS[adder])

    assert found == SEVEN_OPTIONS
    assert all(parameters[name].default is None for name in SEVEN_OPTIONS)
    assert {name: hints[name] for name in SEVEN_OPTIONS} == {
        name: expected[name] for name in SEVEN_OPTIONS
    }


@pytest.mark.feature("F44", "F45")
@pytest.mark.parametrize("adder", sorted(set(ADDERS) - {"JobSpec"}))
def test_identifier_and_payload_are_positional_and_options_are_named(adder):
    parameters = inspect.signature(ADDERS[adder]).parameters

    assert parameters["identifier"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert parameters["payload"].default is None
    assert {parameters[name].kind for name in SEVEN_OPTIONS} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.feature("F56")
def test_a_spec_has_the_identifier_the_payload_and_the_seven_options():
    assert [field.name for field in fields(JobSpec)] == ["identifier", "payload", *SEVEN_OPTIONS]


@pytest.mark.feature("F39")
def test_whatever_may_join_a_transaction_takes_it_by_the_same_name():
    on_our_own = {"cleanup", "apply_tuning", "migrate", "check_schema", "close", "release"}

    for name in METHODS:
        takes_it = "conn" in inspect.signature(getattr(client.Client, name)).parameters
        assert takes_it == (name not in on_our_own), name


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
