"""Who starts on whose ledger: three releases of the reference and we, on every state of it."""

from collections.abc import Callable, Iterator

import pytest

from graphile_worker import Client, SchemaTooNew, sync
from tests.conftest import TestDatabase
from tests.support.catalog import (
    read_companion,
    read_ledger,
)
from tests.support.catalog import read_everything as everything_in
from tests.support.node import node_install, node_worker
from tests.support.rust import rust_install
from tests.support.sql import Sql
from tests.support.tiers import size

# What depends on versions lies deeper, and is tested there on each.
pytestmark = pytest.mark.single_version


def by_us(database):
    with sync.Client(database.dsn, schema=database.schema) as client:
        client.migrate()


def by_node(version: str):
    return lambda database: node_install(database.url, version=version, schema=database.schema)


def by_rust(level: int):
    return lambda database: rust_install(database.url, database.dsn, database.schema, level=level)


def then_21(install: Callable, *, breaking: bool):
    """Add a level of the future to an install."""

    def make(database):
        install(database)
        sql = Sql(database.dsn, database.schema)
        sql.run("insert into :schema.migrations (id, breaking) values (21, $1)", breaking)
        sql.close()

    return make


STATES: dict[str, Callable] = {
    "20 by us": by_us,
    "20 by the reference": by_node("0.18"),
    "20 by rust": by_rust(20),
    "19 by rust": by_rust(19),
    "19 by the reference": by_node("0.17"),
    "18 by the reference": by_node("0.16"),
    "21 breaking": then_21(by_us, breaking=True),
    "21 not breaking": then_21(by_us, breaking=False),
    "21 not breaking on rust": then_21(by_rust(20), breaking=False),
}

# What each release of the reference does there, and the level at which it leaves the ledger.
NODE = [
    ("20 by us", "0.16", "refuses", 20),
    ("20 by us", "0.17", "warns", 20),
    ("20 by us", "0.18", "silent", 20),
    ("20 by rust", "0.16", "warns", 20),
    ("20 by rust", "0.17", "warns", 20),
    ("20 by rust", "0.18", "silent", 20),
    ("19 by rust", "0.16", "warns", 19),
    ("19 by rust", "0.17", "silent", 19),
    ("19 by rust", "0.18", "silent", 20),
    ("19 by the reference", "0.16", "refuses", 19),
    ("19 by the reference", "0.17", "silent", 19),
    ("19 by the reference", "0.18", "silent", 20),
    ("18 by the reference", "0.16", "silent", 18),
    ("18 by the reference", "0.17", "silent", 19),
    ("18 by the reference", "0.18", "silent", 20),
    ("21 breaking", "0.16", "refuses", 21),
    ("21 breaking", "0.17", "refuses", 21),
    ("21 breaking", "0.18", "refuses", 21),
    # It is level 19 below, not 21, that 0.16 cannot live with.
    ("21 not breaking", "0.16", "refuses", 21),
    ("21 not breaking", "0.17", "warns", 21),
    ("21 not breaking", "0.18", "warns", 21),
    ("21 not breaking on rust", "0.16", "warns", 21),
    ("21 not breaking on rust", "0.17", "warns", 21),
    ("21 not breaking on rust", "0.18", "warns", 21),
]
ONE_OF_EACH_OUTCOME = list({row[1:3]: row for row in NODE}.values())

# The level that check_schema finds and the level to which migrate brings it.
OURS = [
    ("20 by us", 20, 20),
    ("20 by the reference", 20, 20),
    ("20 by rust", 20, 20),
    ("19 by rust", 19, 19),
    ("19 by the reference", 19, 20),
    ("18 by the reference", 18, 20),
    ("21 not breaking", 21, 21),
    ("21 not breaking on rust", 21, 21),
]

USED_AS_THEY_ARE = [name for name, found, left in OURS if found == left]


@pytest.fixture(scope="module")
def templates(cluster, schema) -> Iterator[dict[str, str]]:
    """The names of databases with these states, made at their first use."""
    made: dict[str, str] = {}
    yield made
    for name in made.values():
        cluster.drop_database(name)


@pytest.fixture
def state(request, templates, databases, cluster, schema) -> Iterator[TestDatabase]:
    """A database with the ledger that the parameter names."""
    if request.param not in templates:
        template = databases.clone("template0")
        STATES[request.param](TestDatabase(template, cluster, schema))
        templates[request.param] = template
    name = databases.clone(templates[request.param])
    yield TestDatabase(name, cluster, schema)
    cluster.drop_database(name)


def start_node(version, database) -> str:
    """Start a Node worker; return whether it rejects the schema, warns or does neither."""
    done = node_worker(version, database.url, "--schema-only", schema=database.schema)
    if done.returncode:
        assert "unsafe to continue" in done.stderr
        return "refuses"
    if done.stderr:
        assert "Attempting to continue regardless" in done.stderr
        return "warns"
    return "silent"


@pytest.mark.parametrize(
    ("state", "version", "outcome", "level"),
    size(gate=ONE_OF_EACH_OUTCOME, nightly=NODE),
    indirect=["state"],
)
@pytest.mark.feature("F2")
def test_a_node_release_starts_or_rejects_the_ledger(state, version, outcome, level):
    assert start_node(version, state) == outcome

    assert read_ledger(state.dsn, state.schema)[-1][0] == level


@pytest.mark.parametrize(("state", "found", "left"), OURS, indirect=["state"])
@pytest.mark.feature("F2", "F24")
async def test_python_starts_on_each_compatible_ledger(state, found, left):
    async with Client(state.dsn, schema=state.schema) as client:
        assert await client.check_schema() == found
        assert await client.migrate() == left
        job = await client.add_job("greet", {"name": "Ada"})

    assert job.task_identifier == "greet"
    assert read_ledger(state.dsn, state.schema)[-1][0] == left


@pytest.mark.parametrize("state", USED_AS_THEY_ARE, indirect=True)
@pytest.mark.feature("F2")
async def test_python_does_not_raise_a_ledger_above_its_level(state):
    before = everything_in(state)

    async with Client(state.dsn, schema=state.schema) as client:
        await client.migrate()

    assert everything_in(state) == before


@pytest.mark.parametrize(
    "state", [name for name, _, _ in OURS if name != "20 by us"], indirect=True
)
async def test_checking_a_schema_changes_nothing(state):
    before = everything_in(state), read_companion(state.dsn, state.schema)

    async with Client(state.dsn, schema=state.schema) as client:
        await client.check_schema()

    assert (everything_in(state), read_companion(state.dsn, state.schema)) == before


@pytest.mark.parametrize("state", ["21 breaking"], indirect=True)
async def test_a_breaking_level_of_the_future_is_rejected(state):
    before = everything_in(state)

    async with Client(state.dsn, schema=state.schema) as client:
        with pytest.raises(SchemaTooNew, match="level 21"):
            await client.migrate()
        with pytest.raises(SchemaTooNew, match="level 21"):
            await client.check_schema()

    assert everything_in(state) == before


@pytest.mark.parametrize("state", ["20 by rust", "19 by rust"], indirect=True)
async def test_rust_keeps_its_objects_beside_the_companion_schema(state):
    async with Client(state.dsn, schema=state.schema) as client:
        await client.migrate()

    assert (19, False) in read_ledger(state.dsn, state.schema)
    assert any("migrations" in line for line in read_companion(state.dsn, state.schema))
