"""The statements of limits: slots are rented by one pool each, tokens follow the server's clock."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import timedelta
from random import Random
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from graphile_worker import ConcurrencyLimit, RateLimit
from graphile_worker._db.database import run_plan_sync
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.limits import (
    plan_list_limits,
    plan_reset_limit,
    plan_set_rate,
    plan_set_slots,
)
from graphile_worker._sql.queries.limits import (
    create_limit_rows,
    describe_task_limits,
    find_newest_limits,
    find_ready_tasks,
    free_dead_slots,
    register_limits,
    rent_slots,
    restore_tokens,
    return_pool_slots,
    return_slots,
    take_tokens,
    want_slot,
    watch_limits,
)
from graphile_worker._sql.queries.workers import recover_jobs, register_pool
from graphile_worker._sql.render import ParameterStyle, render
from graphile_worker.errors import JobSpecError, SchemaError
from graphile_worker.limits import Limit
from tests.support.fetch_locks import wait_for_lock
from tests.support.pools import open_session
from tests.support.roles import as_role

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)

RENTED = "select slot, pool_id from :ext_schema.slots where pool_id is not null order by slot"
IN_FORCE = "select amount, burst, set_by from :ext_schema.limits where name = $1"


@pytest.fixture
def session(database) -> Iterator[Any]:
    with open_session(database) as connection:
        yield connection


@pytest.fixture
def run(session):
    return session.run


def define(run: Any, *limits: Limit) -> None:
    run(register_limits(limits))
    run(create_limit_rows([each.name or "" for each in limits]))


def enter(run: Any, *pools: str) -> None:
    for pool in pools:
        run(register_pool(pool, HOUR, {}))


def test_a_slot_is_rented_by_one_pool_and_no_more_slots_than_the_limit_has(run):
    define(run, ConcurrencyLimit(3, name="api"))
    enter(run, "a", "b")

    rented = run(rent_slots("api", "a", 2)) + run(rent_slots("api", "b", 5))

    assert [(each.number, each.pool_id) for each in rented] == [(1, "a"), (2, "a"), (3, "b")]
    assert run(rent_slots("api", "a", 1)) == []


def test_after_a_limit_was_lowered_no_slot_is_rented_until_fewer_are_in_use(session, run):
    define(run, ConcurrencyLimit(20, name="api"))
    enter(run, "a", "b")
    rented = run(rent_slots("api", "a", 20))
    run_plan_sync(session, plan_set_slots("api", 5, session.schemas))

    # Any 15 of them end: lower ones, higher ones and those in between.
    run(return_slots(rented[:3] + rented[6:14] + rented[16:]))
    assert run(rent_slots("api", "b", 20)) == []
    run(return_slots(rented[3:4]))

    assert len(run(rent_slots("api", "b", 20))) == 1
    assert run(rent_slots("api", "b", 20)) == []


@pytest.mark.parametrize("seed", range(5))
def test_as_many_slots_are_rented_as_a_lowered_limit_allows(session, run, sql, seed):
    random = Random(seed)
    define(run, ConcurrencyLimit(20, name="api"))
    enter(run, "a", "b")
    rented = run(rent_slots("api", "a", 20))
    run_plan_sync(session, plan_set_slots("api", 8, session.schemas))
    ended = random.sample(rented, random.randint(0, 20))
    run(return_slots(ended))

    run(rent_slots("api", "b", 3))
    run(rent_slots("api", "b", 20))

    assert len(sql.run(RENTED)) == max(20 - len(ended), 8)


async def test_sessions_that_rent_slots_of_a_lowered_limit_at_the_same_time_do_not_exceed_it(
    database, session, run, sql
):
    define(run, ConcurrencyLimit(20, name="api"))
    enter(run, "a", "b", "c")
    rented = run(rent_slots("api", "a", 20))
    run_plan_sync(session, plan_set_slots("api", 5, session.schemas))
    # Slots 18 to 20 are in use, so 2 more jobs may run, although 5 slots are free.
    run(return_slots(rented[:17]))

    with open_session(database) as late, session.transaction() as first:
        [one] = first.run(rent_slots("api", "b", 1))
        others = late.run(rent_slots("api", "c", 5))

    assert [one.number, *(each.number for each in others)] == [1, 2]
    assert len(sql.run(RENTED)) == 5


def test_a_lowered_limit_holds_while_many_sessions_rent_and_return_its_slots(
    database, session, run, sql
):
    define(run, ConcurrencyLimit(8, name="api"))
    enter(run, "a", "b", "c")
    rented = run(rent_slots("api", "a", 8))
    run_plan_sync(session, plan_set_slots("api", 4, session.schemas))
    run(return_slots(rented[:3] + rented[4:6]))

    with ThreadPoolExecutor(8) as threads, ExitStack() as stack:
        sessions = [stack.enter_context(open_session(database)) for _ in range(8)]

        def rent_and_return(mine: Any, seed: int) -> None:
            choice = Random(seed)
            for _ in range(50):
                slots = mine.run(rent_slots("api", "b", choice.randint(1, 3)))
                if choice.random() < 0.9:
                    mine.run(return_slots(slots))

        done = [threads.submit(rent_and_return, each, seed) for seed, each in enumerate(sessions)]
        peaks = [len(sql.run(RENTED))]
        while not all(each.done() for each in done):
            peaks.append(len(sql.run(RENTED)))
        for each in done:
            each.result()

    assert max(peaks) <= 4


def test_slots_that_another_session_rents_at_this_moment_are_skipped(database, session, run):
    define(run, ConcurrencyLimit(2, name="api"))
    enter(run, "a", "b")
    with open_session(database) as other, session.transaction() as mine:
        first = mine.run(rent_slots("api", "a", 1))

        assert [each.number for each in other.run(rent_slots("api", "b", 2))] == [2]
    assert [each.number for each in first] == [1]


def test_a_late_return_does_not_free_a_slot_that_was_rented_again(run, sql):
    define(run, ConcurrencyLimit(1, name="api"))
    enter(run, "a")
    earlier = run(rent_slots("api", "a", 1))
    run(return_slots(earlier))
    run(rent_slots("api", "a", 1))

    run(return_slots(earlier))

    assert sql.run(RENTED) == [(1, "a")]


def test_a_late_return_does_not_free_a_slot_of_a_limit_that_was_deleted_and_registered_again(
    run, sql
):
    define(run, ConcurrencyLimit(1, name="api"))
    enter(run, "a", "b")
    earlier = run(rent_slots("api", "a", 1))
    sql.run("delete from :ext_schema.limits")
    define(run, ConcurrencyLimit(1, name="api"))
    [later] = run(rent_slots("api", "b", 1))

    run(return_slots(earlier))

    assert later.rental == earlier[0].rental
    assert sql.run(RENTED) == [(1, "b")]


@pytest.mark.parametrize("way", ["return_slots", "return_pool_slots", "free_dead_slots"])
async def test_statements_that_free_slots_lock_them_in_one_order(database, session, run, sql, way):
    define(run, ConcurrencyLimit(2, name="api"))
    enter(run, "a")
    rented = run(rent_slots("api", "a", 2))
    # The order of the rows in the table is not that of the slots.
    sql.run("update :ext_schema.slots set rented_at = now() where slot = 1")
    sql.run("update :ext_schema.pools set swept_at = now()")
    query = {
        "return_slots": return_slots(rented[::-1]),
        "return_pool_slots": return_pool_slots(["a"]),
        "free_dead_slots": free_dead_slots(),
    }[way]
    lock = "select from :ext_schema.slots where slot = $1 for update nowait"

    with open_session(database) as late, ThreadPoolExecutor(1) as threads:
        sql.run("begin")
        sql.run(lock, 1)
        freeing = threads.submit(late.run, query)
        with closing(sql.another()) as watcher:
            await wait_for_lock(watcher)
        # It waits for the first slot, and has not locked the second one.
        sql.run(lock, 2)
        sql.run("commit")
        freeing.result()

    assert sql.run(RENTED) == []


def test_the_slots_of_a_dead_pool_are_freed_with_its_jobs_and_it_rents_no_more(run, sql):
    define(run, ConcurrencyLimit(2, name="api"))
    enter(run, "dead", "alive")
    run(rent_slots("api", "dead", 1))
    run(rent_slots("api", "alive", 1))
    sql.run("update :ext_schema.pools set seen_at = now() - interval '1 day' where id = 'dead'")

    run(recover_jobs(["dead"], timedelta(0), 3))
    run(free_dead_slots())

    assert sql.run(RENTED) == [(2, "alive")]
    assert run(rent_slots("api", "dead", 1)) == []
    sql.run("delete from :ext_schema.pools where id = 'alive'")
    run(free_dead_slots())
    assert sql.run(RENTED) == []


async def test_a_slot_that_a_pool_rents_while_two_sessions_free_it_stays_rented(
    database, session, run, sql
):
    define(run, ConcurrencyLimit(1, name="api"))
    enter(run, "dead", "alive", "other")
    run(rent_slots("api", "dead", 1))
    sql.run("update :ext_schema.pools set swept_at = now() where id = 'dead'")

    with open_session(database) as late, ThreadPoolExecutor(1) as threads:
        with session.transaction() as first:
            first.run(free_dead_slots())
            freeing = threads.submit(late.run, free_dead_slots())
            await wait_for_lock(sql)
            [rented] = first.run(rent_slots("api", "alive", 1))
        freeing.result()

    assert rented.number == 1
    assert sql.run(RENTED) == [(1, "alive")]
    assert run(rent_slots("api", "other", 1)) == []


def test_tokens_are_taken_at_the_rate_and_up_to_the_burst(run, sql):
    define(run, RateLimit(60, per=MINUTE, burst=3, name="api"))

    counts = [run(take_tokens("api", 10)).taken for _ in range(5)]
    empty = run(take_tokens("api", 1))

    # At most the tokens of 250 ms at a time, at least one.
    assert counts == [1, 1, 1, 0, 0]
    assert (empty.taken, empty.due_at) == (0, None)
    assert 0 < empty.seconds_until_next <= 1
    sql.run("update :ext_schema.rates set due_at = due_at - interval '1 second'")
    assert [run(take_tokens("api", 10)).taken for _ in range(2)] == [1, 0]


def test_a_fast_rate_gives_the_tokens_of_250_ms_at_a_time(run):
    define(run, RateLimit(1000, per=timedelta(seconds=1), burst=600, name="api"))

    assert run(take_tokens("api", 1000)).taken == 250
    assert run(take_tokens("api", 7)).taken == 7


def test_tokens_do_not_stop_when_the_clock_of_the_server_is_set_back(run, sql):
    define(run, RateLimit(60, per=MINUTE, burst=3, name="api"))
    sql.run("update :ext_schema.rates set due_at = now() + interval '1 day'")

    answer = run(take_tokens("api", 1))

    assert (answer.taken, answer.due_at) == (0, None)
    assert answer.seconds_until_next <= 1
    sql.run("update :ext_schema.rates set due_at = due_at - interval '1 second'")
    assert run(take_tokens("api", 1)).taken == 1


def test_unused_tokens_are_restored_unless_another_pool_took_tokens_since(run, sql):
    define(run, RateLimit(60, per=MINUTE, burst=2, name="api"))
    first = run(take_tokens("api", 1))
    run(restore_tokens("api", 1, first.due_at))
    assert [run(take_tokens("api", 1)).taken for _ in range(3)] == [1, 1, 0]

    run(restore_tokens("api", 1, first.due_at))

    assert run(take_tokens("api", 1)).taken == 0


@pytest.mark.parametrize("style", ["SQL,DMY", "Postgres,DMY", "German"])
def test_unused_tokens_are_restored_with_any_format_of_times_and_time_zone(
    database, run, sql, style
):
    define(run, RateLimit(60, per=MINUTE, burst=2, name="api"))
    # Behind a pooler, the next statement may run in a session with other settings.
    settings = {"datestyle": style, "timezone": "Asia/Kolkata", "extra_float_digits": "-15"}

    with open_session(database, **settings) as other:
        taken: Any = other.run(take_tokens("api", 1))
    run(restore_tokens("api", 1, taken.due_at))

    assert [run(take_tokens("api", 1)).taken for _ in range(3)] == [1, 1, 0]


def test_only_another_pool_is_asked_to_share_slots_and_only_once(run):
    define(run, ConcurrencyLimit(1, name="api"))
    run(want_slot("api", "hungry"))

    def is_wanted(pool: str) -> bool:
        (limit,) = run(watch_limits(["api"], [pool], ["api"]))
        return bool(limit.is_wanted)

    assert [is_wanted(pool) for pool in ("hungry", "a", "b")] == [False, True, False]


def test_what_a_person_set_stays_in_force_after_a_deployment_until_it_is_reset(session, run, sql):
    define(run, ConcurrencyLimit(20, name="api"), RateLimit(100, per=MINUTE, name="stripe"))
    schemas = session.schemas

    run_plan_sync(session, plan_set_slots("api", 22, schemas, actor="ada"))
    run_plan_sync(
        session,
        plan_set_rate("stripe", 50, MINUTE, schemas, burst=5, actor="ada"),
    )
    define(run, ConcurrencyLimit(30, name="api"), RateLimit(200, per=MINUTE, name="stripe"))

    assert sql.run(IN_FORCE, "api") == [(22, None, "ada")]
    assert sql.run(IN_FORCE, "stripe") == [(50, 5, "ada")]
    assert sql.value("select count(*)::int from :ext_schema.slots") == 22
    reset = run_plan_sync(session, plan_reset_limit("api", schemas))
    assert reset is not None
    assert str(reset.limit) == "30 at a time"
    assert run_plan_sync(session, plan_reset_limit("api", schemas)) is None
    assert sql.run(IN_FORCE, "api") == [(30, None, None)]
    entries = "select actor, action, filter, note from :ext_schema.audit order by id"
    assert sql.run(entries) == [
        ("ada", "limits set", "limit:api", "22 at a time"),
        ("ada", "limits set", "limit:stripe", "50 per 1m, burst 5"),
        (None, "limits reset", "limit:api", "30 at a time"),
    ]


def test_a_limit_that_was_set_is_returned_as_it_is_stored(session, run, sql):
    define(run, ConcurrencyLimit(20, name="api"))
    schemas = session.schemas

    for actor, set_by in (("ada", "ada"), (None, sql.value("select session_user::text"))):
        state = run_plan_sync(session, plan_set_slots("api", 22, schemas, actor=actor))
        [listed] = run_plan_sync(session, plan_list_limits(schemas))
        assert (state.limit, state.set_by, state.set_at) == (
            ConcurrencyLimit(22, name="api"),
            set_by,
            listed.set_at,
        )
        assert state.set_at is not None
    reset = run_plan_sync(session, plan_reset_limit("api", schemas))
    assert reset is not None
    assert (reset.set_by, reset.set_at) == (None, None)


async def test_a_limit_that_a_worker_changes_meanwhile_is_not_set(database, session, run, sql):
    define(run, ConcurrencyLimit(20, name="api"))

    with open_session(database) as late, ThreadPoolExecutor(1) as threads:
        with session.transaction() as first:
            first.run(register_limits([RateLimit(1, per=MINUTE, name="api")]))
            plan = plan_set_slots("api", 22, session.schemas)
            setting = threads.submit(run_plan_sync, late, plan)
            await wait_for_lock(sql)
        with pytest.raises(JobSpecError, match="changed the kind of this limit or deleted it"):
            setting.result()

    assert sql.run("select kind, amount, set_at from :ext_schema.limits") == [("rate", 1, None)]
    assert sql.value("select count(*) from :ext_schema.audit") == 0


@pytest.mark.parametrize(
    "values", ["amount = 0", "app_amount = 0", "period = '0'", "burst = 0", "app_burst = null"]
)
def test_values_that_no_limit_has_are_not_stored(run, sql, values):
    define(run, RateLimit(1, per=MINUTE, name="api"))

    with pytest.raises(psycopg.errors.CheckViolation):
        sql.run(f"update :ext_schema.limits set {values}")


def test_a_limit_cannot_be_set_without_its_name_kind_or_privileges(session, run, database, role):
    define(run, ConcurrencyLimit(20, name="api"))
    schemas = session.schemas

    with pytest.raises(JobSpecError, match="did you mean 'api'"):
        run_plan_sync(session, plan_set_slots("apo", 3, schemas))
    with pytest.raises(JobSpecError, match="this is a concurrency limit"):
        run_plan_sync(session, plan_set_rate("api", 3, MINUTE, schemas))
    with (
        open_session(SimpleNamespace(dsn=as_role(database, role), schema=database.schema)) as other,
        pytest.raises(SchemaError, match="cannot store limits"),
    ):
        run_plan_sync(other, plan_set_slots("api", 3, schemas))


def test_a_limit_of_another_kind_gives_no_permits(session, run):
    define(run, ConcurrencyLimit(2, name="api"))
    enter(run, "a")

    define(run, RateLimit(1, per=MINUTE, name="api"))

    assert run(rent_slots("api", "a", 1)) == []
    assert run(take_tokens("api", 1)).taken == 1
    (state,) = run_plan_sync(session, plan_list_limits(session.schemas))
    assert state.seconds_until_next


def test_the_newest_pool_of_a_limit_is_the_one_that_started_last_of_those_that_list_it(run, sql):
    api, stripe = ConcurrencyLimit(1, name="api"), RateLimit(1, per=MINUTE, name="stripe")
    pools: dict[str, dict[str, list[Limit]]] = {
        "old": {"a": [api], "b": [stripe, api]},
        "new": {"a": [api]},
        "dead": {"a": [api]},
    }
    for pool, limits in pools.items():
        run(register_pool(pool, HOUR, {"limits": describe_task_limits(limits)}))
    enter(run, "other")
    sql.run("update :ext_schema.pools set swept_at = now() where id = 'dead'")

    def find(pool: str) -> Any:
        return run(find_newest_limits(["api", "stripe"], [pool]))

    assert {pool: find(pool) for pool in ("old", "new", "dead", "other")} == {
        "old": ["stripe"],
        "new": ["api"],
        "dead": [],
        "other": [],
    }


def test_a_pool_with_a_new_id_is_as_old_as_its_first_start(run, sql):
    limits = describe_task_limits({"a": [ConcurrencyLimit(1, name="api")]})
    first_start = sql.value("select extract(epoch from now() - interval '1 hour')::float8")
    run(register_pool("new", HOUR, {"limits": limits}))
    run(register_pool("renamed", HOUR, {"limits": limits, "first_started_at": first_start}))

    newest = {pool: run(find_newest_limits(["api"], [pool])) for pool in ("new", "renamed")}

    assert newest == {"new": ["api"], "renamed": []}


def test_tasks_with_a_ready_job_are_found_at_any_priority(pool, sql):
    other = pool.register_tasks("other", "task")
    ids = {name: id for id, name in other.tasks.items()}
    add = "select :schema.add_job($1, run_at => now() + $2, priority => $3, queue_name => $4)"
    for priority in range(3):
        sql.run(add, "other", HOUR, priority, None)
    assert pool.connection.run(find_ready_tasks(list(ids.values()))) == set()

    sql.run(add, "other", -HOUR, 5, None)
    sql.run(add, "task", -HOUR, 7, "queue")

    assert pool.connection.run(find_ready_tasks(list(ids.values()))) == set(ids.values())


def test_a_look_for_ready_tasks_reads_few_pages_beside_many_jobs(database, sql):
    sql.run("insert into :schema._private_tasks (identifier) values ('many'), ('none')")
    sql.run(
        """
        insert into :schema._private_jobs (task_id, payload, run_at)
        select
          (select id from :schema._private_tasks where identifier = 'many'), '{}',
          now() + case number % 2 when 0 then interval '1 day' else interval '-1 hour' end
        from generate_series(1, 100000) as number
        """
    )
    sql.run("analyze :schema._private_jobs")
    tasks = [row[0] for row in sql.run("select id from :schema._private_tasks")]
    text = render("find_ready_tasks", Schemas.from_names(database.schema), ParameterStyle.NATIVE)
    explain = f"explain (analyze, buffers, format json) {text}"

    with psycopg.connect(database.dsn) as connection, psycopg.RawCursor(connection) as cursor:
        for mode in ("force_custom_plan", "force_generic_plan"):
            cursor.execute(f"set plan_cache_mode = {mode}".encode())
            [[[plan]]] = cursor.execute(explain.encode(), (tasks, None, 20)).fetchall()
            assert plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"] < 50
