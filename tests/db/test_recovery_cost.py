"""What heartbeats and sweeps cost while nobody is dead, however many jobs there are."""

import json
import statistics
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.workers import get_dead_pools, heartbeat, register_pool
from graphile_worker._sql.query import Query
from graphile_worker._sql.render import ParameterStyle, render
from tests.conftest import TestDatabase
from tests.support.pools import open_session
from tests.support.sql import Sql

JOBS = 1_000_000
FLEET = 20
ROUNDS = 40

FILL = """
insert into :schema._private_jobs (task_id, payload, run_at)
select $1, json_build_object('n', n), now() - interval '1 minute'
from generate_series(1, $2::int) as n
"""


@pytest.fixture
def fleet(database, sql) -> list[str]:
    """Pools that live, as many as a large fleet has."""
    with open_session(database) as connection:
        for n in range(FLEET):
            connection.run(register_pool(f"pool {n}", timedelta(hours=1), {"concurrency": 10}))
    return [f"pool {n}" for n in range(FLEET)]


def beat(pool_id: str) -> Query[Any]:
    """As a pool of ten workers says it."""
    return heartbeat([pool_id], list(range(10)))


@pytest.mark.feature("F220", "F221")
def test_neither_a_heartbeat_nor_a_look_for_the_silent_touches_the_jobs(database, sql, fleet):
    touched: set[str] = set()

    for query in (beat(fleet[0]), get_dead_pools(fleet[0])):
        plan = explained(sql, database.schema, query)
        touched |= {node["Relation Name"] for node in nodes(plan["Plan"])}

    assert touched == {"pools"}


@pytest.mark.nightly
@pytest.mark.single_version
@pytest.mark.timeout(300)
@pytest.mark.feature("F220", "F221")
def test_beside_a_million_jobs_an_interval_costs_less_than_a_millisecond(
    database: TestDatabase, sql: Sql, fleet: list[str], figure: Callable[[str], None]
):
    if database.cluster.major != 18 or not database.schema.isidentifier():
        pytest.skip("one measurement is enough: on 18, in a schema with a plain name")
    task = sql.value("insert into :schema._private_tasks (identifier) values ('x') returning id")
    sql.run(FILL, task, JOBS)
    sql.run("analyze :schema._private_jobs")

    costs: dict[str, list[float]] = {"heartbeat": [], "get_dead_pools": []}
    for n in range(ROUNDS):
        own = fleet[n % FLEET]
        for query in (beat(own), get_dead_pools(own)):
            costs[str(query.statement)].append(milliseconds(sql, database.schema, query))

    medians = {name: statistics.median(each) for name, each in costs.items()}
    total = sum(medians.values())
    figure(
        f"{JOBS:,} waiting jobs, {FLEET} pools, nobody silent: {total:.3f} ms of database time per "
        f"interval (heartbeat {medians['heartbeat']:.3f}, "
        f"sweep {medians['get_dead_pools']:.3f}; planning included)"
    )
    assert total < 1.0
    assert sql.value("select count(*) from :schema._private_jobs") == JOBS


def milliseconds(sql: Sql, schema: str, query: Query[Any]) -> float:
    plan = explained(sql, schema, query)
    taken: float = plan["Planning Time"] + plan["Execution Time"]
    return taken


def explained(sql: Sql, schema: str, query: Query[Any]) -> dict[str, Any]:
    """How the server carries a query out."""
    statement = render(query.statement, Schemas.from_names(schema), ParameterStyle.NATIVE)
    cursor = sql.connection.execute(
        b"explain (analyze, format json) " + statement.encode(), query.args or None, prepare=False
    )
    found = cursor.fetchone()
    assert found is not None
    plan: dict[str, Any] = found[0][0] if isinstance(found[0], list) else json.loads(found[0])[0]
    return plan


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "Relation Name" in plan:
        yield plan
    for each in plan.get("Plans", ()):
        yield from nodes(each)
