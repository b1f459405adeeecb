"""The database records each change of its tables, with the process, and blocks no session."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from graphile_worker import (
    App,
    Discard,
    JobContext,
    JobSpec,
    LocalQueueOptions,
    Retry,
    Snooze,
    sync,
)
from graphile_worker._sql.queries.cron import schedule_jobs
from graphile_worker.events import JobStarted
from tests.laboratory.history_checker import (
    Add,
    Expectations,
    JobRow,
    check,
    install_audit,
    read_audit,
)
from tests.support.pools import Pool, open_session
from tests.support.recorder import Recorder, open_runners, wait_until
from tests.support.sql import Sql

# Nothing that could run is left.
FINISHED = """
select count(*) = 0
from :schema._private_jobs
where locked_by is not null or attempts < max_attempts
"""


@pytest.fixture
def audited(database) -> Any:
    install_audit(database.dsn, database.schema)
    return database


def dsn_of(database: Any, process: str) -> str:
    """The DSN of a process with its own application name."""
    return make_conninfo(database.dsn, application_name=process)


@pytest.fixture
def pool_of(audited) -> Iterator[Callable[[str], Pool]]:
    """Makes pools, each of a process of its name."""
    with ExitStack() as stack:

        def make(process: str) -> Pool:
            reached = _Reached(dsn_of(audited, process), audited.schema)
            pool = Pool(stack.enter_context(open_session(reached))).register_tasks("task")
            return pool.with_id(f"pool of {process}")

        yield make


class _Reached:
    def __init__(self, dsn: str, schema: str) -> None:
        self.dsn = dsn
        self.schema = schema


def client_of(database: Any, process: str) -> sync.Client:
    return sync.Client(dsn_of(database, process), schema=database.schema)


app = App()


@app.task
async def work(ctx: JobContext, fails: int = 0) -> None:
    if ctx.job.attempts <= fails:
        raise Retry(timedelta(0))


# Jobs that have snoozed once; a snooze does not count as an attempt.
slept: set[int] = set()


@app.task
async def snooze(ctx: JobContext) -> None:
    if ctx.job.id not in slept:
        slept.add(ctx.job.id)
        raise Snooze(timedelta(0))


@app.task
async def discard() -> None:
    raise Discard("no")


@app.task
async def pay(ctx: JobContext) -> None:
    async with ctx.transaction() as connection:
        await connection.execute(
            "insert into gw_audit.effects (job_id, attempt) values (%s, %s)",
            (ctx.job.id, ctx.job.attempts),
        )


@app.task(name="tick")
async def tick() -> None:
    pass


def some_jobs() -> list[JobSpec]:
    """Three hundred: two fifths in named queues, some of which fail, snooze, give up or pay."""
    specs = []
    for number in range(300):
        payload = {"token": f"job {number}", "fails": int(number % 7 == 3)}
        name = {4: "snooze", 9: "discard", 14: "pay"}.get(number % 20, "work")
        queue = f"queue {number % 10}" if number % 5 < 2 else None
        specs.append(JobSpec(name, payload, queue_name=queue, priority=number % 3))
    return specs


def count_failing() -> int:
    return sum(spec.identifier == "work" and spec.payload["fails"] for spec in some_jobs())


def add_some_jobs(client: sync.Client) -> list[Add]:
    """What an enqueuer records of it."""
    notes = []
    for number, spec in enumerate(some_jobs()):
        job = client.add_job(
            spec.identifier, spec.payload, queue_name=spec.queue_name, priority=spec.priority
        )
        name = spec.payload["token"]
        notes += acknowledged(f"call {number}", name, job.id)
    return notes


def acknowledged(call: str, token: str, job_id: int, key: str | None = None) -> list[Add]:
    began = Add("invoke", call, 0.0, (token,), key=key)
    return [began, replace(began, step="ok", job_ids=(job_id,))]


def replace_keys(client: sync.Client) -> list[Add]:
    """Ten jobs with keys, each added three times."""
    notes = []
    for number in range(30):
        key, token = f"key {number % 10}", f"keyed {number}"
        job = client.add_job("work", {"token": token}, job_key=key)
        notes += acknowledged(token, token, job.id, key)
    return notes


def add_ticks(database: Any, minutes: list[datetime]) -> None:
    """As two workers do at the same time: each minute for both of two crontabs."""
    for process in ("cron-1", "cron-2"):
        with open_session(_Reached(dsn_of(database, process), database.schema)) as connection:
            for minute in minutes:
                jobs = [(name, ticking(minute)) for name in ("one", "two")]
                connection.run(schedule_jobs(jobs, minute))


def ticking(minute: datetime) -> JobSpec:
    return JobSpec(
        "tick", {"_cron": {"ts": f"{minute:%Y-%m-%dT%H:%M}:00.000Z", "backfilled": False}}
    )


@pytest.mark.parametrize(
    "local_queue",
    [None, LocalQueueOptions(size=20), LocalQueueOptions()],
    ids=["direct", "local queue of 20", "local queue"],
)
async def test_the_record_of_two_workers_with_300_jobs_has_no_violation(audited, sql, local_queue):
    slept.clear()
    recorder = Recorder()
    minutes = [datetime(2026, 1, 1, 0, minute, tzinfo=UTC) for minute in range(5)]
    async with open_runners(audited, recorder.hooks) as start:
        options = {"concurrency": 5, "local_queue": local_queue}
        workers = [
            await start(app, on=dsn_of(audited, process), **options) for process in ("py-1", "py-2")
        ]
        with client_of(audited, "add-1") as client:
            notes = add_some_jobs(client)
            notes += replace_keys(client)
        add_ticks(audited, minutes)
        await wait_until(lambda: sql.value(FINISHED))
        for worker in workers:
            await worker.stop()

    history = read_audit(audited.dsn, audited.schema)
    history.adds = notes
    run = Expectations(
        transactional_tasks={"pay"},
        cron_minutes=dict.fromkeys(("one", "two"), [minute.timestamp() for minute in minutes]),
        must_finish=True,
        strict_priority=True,
    )
    report = check(history, run)

    assert report.violations == 0, "\n".join(report.lines())
    figures = report.figures
    assert figures["adds acknowledged"] == 330
    assert figures["effects"] == 15
    assert figures["jobs"] - figures["jobs completed"] == report.kinds["detachment"] + 15
    assert report.kinds["failure"] == 15 + count_failing()
    assert report.kinds["refund"] >= 15
    claimed_by = {change.app for change in history.changes if is_claim(change.old, change.new)}
    assert claimed_by == {"py-1", "py-2"}


def is_claim(old: Any, new: Any) -> bool:
    both = isinstance(old, JobRow) and isinstance(new, JobRow)
    return both and old.locked_by is None and new.locked_by is not None


async def test_the_record_of_jobs_released_at_shutdown_has_no_violation(audited, sql):
    recorder = Recorder()
    with client_of(audited, "add-1") as client:
        client.add_jobs([JobSpec("work", queue_name="q" if n % 2 else None) for n in range(40)])
    async with open_runners(audited, recorder.hooks) as start:
        worker = await start(
            app, on=dsn_of(audited, "py-1"), local_queue=LocalQueueOptions(size=40)
        )
        await recorder.wait_for(JobStarted)
        await worker.stop()

    report = check(read_audit(audited.dsn, audited.schema))

    assert report.violations == 0, "\n".join(report.lines())
    assert report.kinds["refund"] + report.kinds["completion"] == report.kinds["claim"]


def test_each_change_of_the_three_tables_is_recorded_with_its_process(audited):
    sql = Sql(dsn_of(audited, "somebody"), audited.schema)
    sql.run("select :schema.add_job('task', queue_name => 'q', job_key => 'k')")
    sql.run("update :schema._private_jobs set locked_by = 'p', locked_at = now(), attempts = 1")
    sql.run("begin")
    sql.run("update :schema._private_job_queues set locked_by = 'p', locked_at = now()")
    sql.run("rollback")
    sql.run("delete from :schema._private_jobs")
    sql.run("insert into :schema._private_known_crontabs values ('c', now(), null)")
    sql.run("delete from :schema._private_job_queues")
    sql.close()

    changes = read_audit(audited.dsn, audited.schema).changes

    seen = [(change.op, type(change.new or change.old).__name__) for change in changes]
    assert seen == [
        ("i", "QueueRow"),
        ("i", "JobRow"),
        ("u", "JobRow"),
        ("d", "JobRow"),
        ("i", "CrontabRow"),
        ("d", "QueueRow"),
    ]
    assert {change.app for change in changes} == {"somebody"}
    assert [change.xid for change in changes] == sorted(change.xid for change in changes)
    claimed = changes[2].new
    assert isinstance(claimed, JobRow)
    assert claimed.locked_by == "p"
    assert changes[3].old is claimed
    assert changes[0].xid == changes[1].xid


def test_rows_that_exist_before_the_record_begins_are_recorded_as_seen(database):
    with client_of(database, "add-1") as client:
        client.add_job("task", queue_name="q")
    install_audit(database.dsn, database.schema)
    with client_of(database, "admin-1") as client:
        client.complete_jobs([1])

    history = read_audit(database.dsn, database.schema)

    assert [change.op for change in history.changes] == ["s", "s", "d"]
    assert check(history).violations == 0


POISON = (
    """'"\\u0000"'""",
    """'"\\ud800"'""",
    "repeat('[', 5000) || repeat(']', 5000)",
    "'\"' || repeat('x', 1000000) || '\"'",
    """'{"_cron": {"ts": "no date at all'""" + " || repeat('x', 300) || '\"}}'",
)


def test_any_content_of_a_job_can_be_recorded(audited, sql):
    for payload in POISON:
        sql.run(f"select :schema.add_job('task', ({payload})::json)")
    for moment in ("infinity", "-infinity", "0044-03-15 BC"):
        sql.run("select :schema.add_job('task', run_at => $1::text::timestamptz)", moment)

    history = read_audit(audited.dsn, audited.schema)

    rows = [change.new for change in history.changes if isinstance(change.new, JobRow)]
    assert len(rows) == len(POISON) + 3
    assert max(len(row.payload) for row in rows) < 600
    assert check(history).violations == 0


def test_an_unfenced_completion_by_a_paused_worker_is_a_violation(audited, sql, pool_of):
    sql.run("select :schema.add_job('task', queue_name => 'q')")
    zombie, heir = pool_of("node-1"), pool_of("py-1")
    zombie.claim_one()
    sql.run("select :schema.force_unlock_workers(array['pool of node-1'])")
    heir.claim_one()
    with_its_name = Sql(dsn_of(audited, "node-1"), audited.schema)
    with_its_name.run("delete from :schema._private_jobs where id = 1")
    with_its_name.close()

    report = check(read_audit(audited.dsn, audited.schema))

    assert report.kinds["recovery"] == 1
    # The job, and its queue, which no worker unlocks.
    assert report.counts == {"fence_breaks": 1, "orphan_locks": 1}


def test_a_fenced_completion_by_a_paused_worker_changes_nothing(audited, sql, pool_of):
    sql.run("select :schema.add_job('task', queue_name => 'q')")
    zombie, heir = pool_of("py-1"), pool_of("py-2")
    lost = zombie.claim_one()
    sql.run("select :schema.force_unlock_workers(array['pool of py-1'])")
    held = heir.claim_one()

    assert zombie.finish(lost) == set()
    assert heir.finish(held) == {1}

    report = check(read_audit(audited.dsn, audited.schema))
    assert report.violations == 0, "\n".join(report.lines())


def test_a_fetch_returns_and_locks_the_same_jobs_with_the_record(audited, sql, pool_of):
    for _ in range(20):
        sql.run("select :schema.add_job('task', queue_name => 'q')")
        sql.run("select :schema.add_job('task')")
    pool, other = pool_of("py-1"), pool_of("py-2")

    taken = Counter(each.job.id for each in [*pool.claim(30), *other.claim(30)])

    assert sorted(taken.elements()) == [1, *range(2, 41, 2)]
    locks = "select count(*) from pg_locks where relation = 'gw_audit.changes'::regclass"
    assert sql.value(locks) == 0
