"""Named queues: their states, their jobs, and pages."""

from datetime import timedelta

from graphile_worker._sql.queries.workers import register_pool
from graphile_worker.ops.pools import PoolHealth
from graphile_worker.ops.queues import QueuePage, QueueState, plan_list_queues
from graphile_worker.ops.search import QueryLimits
from tests.support.job_table import NODE
from tests.support.pools import open_session


def list_queues(table, **options) -> QueuePage:
    page: QueuePage = table.run_plan(plan_list_queues(table.schemas, **options))
    return page


def test_a_queue_is_free_locked_blocked_or_paused(database, table, sql):
    with open_session(database) as connection:
        for pool in ("alive", "dead"):
            connection.run(register_pool(pool, timedelta(hours=1), {}))
    sql.run("update :ext_schema.pools set seen_at = now() - interval '2 hours' where id = 'dead'")
    for name, locked_at, locked_by in [
        ("free", "null", "null"),
        ("running", "now()", "'alive'"),
        ("node", "now()", f"'{NODE}'"),
        ("of a dead worker", "now()", "'dead'"),
        ("old", "now() - interval '5 hours'", f"'{NODE}'"),
        ("paused", "now() + interval '900 years'", "'paused:ada'"),
        ("paused by hand", "'infinity'", "'me'"),
    ]:
        table.add_queue(name, locked_at=locked_at, locked_by=locked_by)

    queues = list_queues(table).queues

    assert [(each.name, each.state, each.worker_health) for each in queues] == [
        ("of a dead worker", QueueState.BLOCKED, PoolHealth.DEAD),
        ("old", QueueState.BLOCKED, PoolHealth.UNKNOWN),
        ("paused", QueueState.PAUSED, None),
        ("paused by hand", QueueState.PAUSED, None),
        ("node", QueueState.LOCKED, PoolHealth.UNKNOWN),
        ("running", QueueState.LOCKED, PoolHealth.ALIVE),
        ("free", QueueState.FREE, None),
    ]


def test_due_jobs_are_counted_with_and_without_the_index(table, sql):
    queue = table.add_queue("a")
    locked = table.add_queue("b", locked_at="now()", locked_by=f"'{NODE}'")
    holder = table.add_job(job_queue_id=locked, locked_at="now()", locked_by=f"'{NODE}'")
    for name in (queue, locked, locked):
        table.add_job(job_queue_id=name, run_at="now() - interval '1 hour'")
        table.add_job(job_queue_id=name, run_at="now() + interval '1 hour'")
    table.add_job(job_queue_id=queue, attempts="25")

    for statement in ("select", "drop index :schema.gwpy_jobs_of_queues"):
        sql.run(statement)
        b, a = list_queues(table).queues
        assert (a.ready, a.waiting, a.job_id) == (1, 0, None)
        assert (b.ready, b.waiting, b.job_id, b.task_identifier) == (0, 2, holder, "task")
        assert 3600 <= (b.oldest_due_seconds or 0) < 7200


def test_counts_have_a_limit(table):
    queue = table.add_queue("a")
    for _ in range(3):
        table.add_job(job_queue_id=queue)

    (capped,) = list_queues(table, max_count=2).queues
    (whole,) = list_queues(table, max_count=4).queues

    assert (capped.ready, capped.is_capped) == (2, True)
    assert (whole.ready, whole.is_capped) == (3, False)


def test_pages_follow_each_other_and_a_search_ignores_case(table):
    names = [f"queue_{number}%" for number in range(5)]
    for name in names:
        table.add_queue(name)
    table.add_queue("Über")

    first = list_queues(table, limit=3)
    second = list_queues(table, limit=3, after=first.next)

    assert [each.name for each in first.queues + second.queues] == [*names, "Über"]
    assert second.next is None
    assert [each.name for each in list_queues(table, search="E_3%").queues] == ["queue_3%"]
    assert list_queues(table, search="none").queues == []


def test_counts_are_missing_if_they_take_too_long(table, sql):
    table.add_queue("a")
    with sql.connection.transaction():
        sql.run("lock table :schema._private_jobs in access exclusive mode")
        limits = QueryLimits(lock_timeout=timedelta(milliseconds=10))
        (queue,) = list_queues(table, limits=limits).queues

    assert (queue.name, queue.ready) == ("a", None)
