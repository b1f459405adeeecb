"""Scheduled tasks in a list: where they come from, their next runs, and whether they are late."""

from datetime import UTC, datetime, timedelta
from typing import Any

from graphile_worker import App, WorkerOptions
from graphile_worker._sql.queries.workers import register_pool
from graphile_worker.crontab.items import CronItem, parse_cron_items
from graphile_worker.ops.cron_items import (
    CronHealth,
    CronSource,
    ListedCronItem,
    plan_list_cron_items,
)
from graphile_worker.runner import Runner
from tests.support.pools import open_session
from tests.support.recorder import wait_until

INSERT = """
insert into :schema._private_known_crontabs (identifier, known_since, last_execution)
values ($1, now() - $2::interval, now() - $3::interval)
"""


def list_items(table, *items: CronItem) -> dict[str, ListedCronItem]:
    listing = table.run_plan(plan_list_cron_items(table.schemas, parse_cron_items(items)))
    return {each.identifier: each for each in listing.items}


def item(identifier: str, match: Any = "*/5 * * * *", **more: Any) -> CronItem:
    return CronItem(task="task", match=match, identifier=identifier, **more)


def test_items_of_the_app_precede_those_of_workers_and_of_the_database(database, table, sql):
    summaries = [{"id": "a", "task": "t", "schedule": "0 1 * * *"}, {"id": "b", "task": "t"}]
    with open_session(database) as connection:
        connection.run(register_pool("pool", timedelta(hours=1), {"crontab": summaries}))
        connection.run(
            register_pool("dead", timedelta(hours=1), {"crontab": [{"id": "z", "task": "t"}]})
        )
    sql.run("update :ext_schema.pools set seen_at = now() - interval '2 hours' where id = 'dead'")
    for name in ("a", "b", "c"):
        sql.run(INSERT, name, "1 day", None)

    listed = list_items(table, item("a", backfill=timedelta(hours=1), tz="Europe/Rome"))

    assert {name: each.source for name, each in listed.items()} == {
        "a": CronSource.APP,
        "b": CronSource.WORKER,
        "c": CronSource.DATABASE,
    }
    assert (listed["a"].schedule, listed["a"].tz) == ("*/5 * * * *", "Europe/Rome")
    assert listed["a"].backfill == timedelta(hours=1)
    assert (listed["b"].schedule, listed["c"].task) == (None, None)


def test_an_item_is_late_if_it_did_not_run_when_it_was_due(table, sql):
    for name, since, last in [
        ("ok", "1 day", "2 minutes"),
        ("late", "1 day", "20 minutes"),
        ("never ran", "1 day", None),
        ("new", "1 second", None),
    ]:
        sql.run(INSERT, name, since, last)
    items = [item(name) for name in ("ok", "late", "never ran", "new", "unregistered")]

    listed = list_items(table, *items)

    health = {name: each.health for name, each in listed.items()}
    assert health == {
        "ok": CronHealth.OK,
        "late": CronHealth.LATE,
        "never ran": CronHealth.LATE,
        "new": CronHealth.OK,
        "unregistered": CronHealth.UNKNOWN,
    }


def test_the_next_three_runs_follow_the_time_of_the_database(table):
    (listed,) = list_items(table, item("a", "30 4 29 2 *")).values()

    now = datetime.now(UTC)
    assert len(listed.next) == 3
    assert all(
        (each.month, each.day, each.hour, each.minute) == (2, 29, 4, 30) for each in listed.next
    )
    assert now < listed.next[0] < listed.next[1] < listed.next[2]
    (never,) = list_items(table, item("a", "0 0 30 2 *")).values()
    assert never.next == ()


def test_a_function_in_place_of_a_pattern_is_asked_for_a_week_and_may_raise(table, sql):
    calls = 0

    def match(digest: Any) -> bool:
        nonlocal calls
        calls += 1
        return bool(digest.min == 0)

    def fail(digest: Any) -> bool:
        raise ValueError

    sql.run(INSERT, "function", "900 days", None)
    listed = list_items(table, item("function", match), item("wrong", fail))

    assert (listed["function"].schedule, len(listed["function"].next)) == (None, 3)
    assert listed["function"].health is CronHealth.LATE
    assert calls < 30_000
    assert (listed["wrong"].next, listed["wrong"].health) == ((), CronHealth.UNKNOWN)


async def test_a_worker_registers_its_cron_items(database, table, sql):
    app = App(database.dsn, schema=database.schema)

    @app.cron("30 4 * * 1", id="weekly", tz="Europe/Rome", backfill=timedelta(hours=1))
    @app.task
    async def report() -> None:
        pass

    async with Runner(database.dsn, app, options=WorkerOptions(schema=database.schema)):
        await wait_until(lambda: sql.run("select 1 from :ext_schema.pools"))
        listed = list_items(table)

    assert (listed["weekly"].source, listed["weekly"].schedule) == (CronSource.WORKER, "30 4 * * 1")
    assert listed["weekly"].words == "at 04:30 on Monday Europe/Rome"
    assert listed["weekly"].backfill == timedelta(hours=1)
