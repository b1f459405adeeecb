"""When a worker looks for jobs: when it hears of some, when it polls, and what ends it for good."""

import asyncio
import time
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from graphile_worker import JobContext, JobSpec, SchemaTooNew
from graphile_worker._db.notifications import MAX_NOTIFICATIONS_PER_SECOND, TooManyNotifications
from graphile_worker._db.psycopg import PsycopgDatabase
from graphile_worker._worker.claimer import ClaimTimings
from graphile_worker._worker.fetch_strategy import JobFetcher
from graphile_worker._worker.listener import ListenTimings
from graphile_worker._worker_config import WorkerTimings
from graphile_worker.events import (
    GetJobEmpty,
    GetJobStarted,
    JobErrored,
    JobFinished,
    JobStarted,
    JobSucceeded,
    ListenFailed,
    ListenNotified,
    ListenStarted,
    PoolGracefulShutdown,
    ResetLockedStarted,
    ResetLockedSucceeded,
)
from tests.support.recorder import Recorder, wait_until
from tests.support.sql import Sql
from tests.support.tasks import nothing
from tests.support.tiers import size

# Nothing is found by polling where this is the interval.
HOUR = timedelta(hours=1)
SOON = timedelta(milliseconds=20)
LISTENERS = """
select pid from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and query ilike 'listen%'
"""


async def fail(payload: object) -> None:
    raise ValueError


async def fall_asleep(recorder: Recorder, sql: Sql, workers: int = 1) -> None:
    """Until they listen and have nothing left to look for; events count from there."""
    await recorder.wait_for(ListenStarted)
    await recorder.wait_for(GetJobEmpty, count=workers)
    # Heard after the look that follows the beginning to listen.
    sql.run("""notify "jobs:insert", '{"count": 0}'""")
    await recorder.wait_for(ListenNotified)
    while (asked := len(recorder.events_of(GetJobStarted))) > len(recorder.events_of(GetJobEmpty)):
        await recorder.wait_for(GetJobEmpty, count=asked)
    recorder.clear()


# Hearing of jobs


# Seconds.
HEARD_WITHIN = size(gate=20.0, nightly=1.0)


@pytest.mark.feature("F100")
async def test_a_worker_is_notified_of_a_job_within_a_second(start, recorder, sql):
    await start({"work": nothing}, poll_interval=HOUR)
    await fall_asleep(recorder, sql)
    took = []

    for n in range(1, 6):
        added = time.monotonic()
        sql.run("select :schema.add_job('work')")
        await recorder.wait_for(JobStarted, count=n)
        took.append(time.monotonic() - added)
        await recorder.wait_for(JobSucceeded, count=n)

    # The next poll comes after an hour. The quickest of them: the machine may be busy.
    assert min(took) < HEARD_WITHIN


@pytest.mark.feature("F100")
async def test_a_job_is_announced_when_its_transaction_commits(start, recorder, sql):
    await start({"work": nothing}, poll_interval=HOUR)
    await fall_asleep(recorder, sql)

    sql.run("begin")
    sql.run("select :schema.add_job('work')")
    assert not recorder.events_of(ListenNotified)
    sql.run("commit")

    await recorder.wait_for(JobSucceeded)
    [heard] = recorder.events_of(ListenNotified)
    assert heard.channel == "jobs:insert"


async def test_a_job_that_was_there_before_is_found_at_the_start(start, recorder, sql):
    sql.run("select :schema.add_job('work')")

    await start({"work": nothing}, poll_interval=HOUR, listen=False)

    await recorder.wait_for(JobSucceeded)


@pytest.mark.feature("F101")
async def test_after_a_lost_connection_it_listens_again_and_looks(start, recorder, sql):
    await start({"work": nothing}, poll_interval=HOUR)
    await fall_asleep(recorder, sql)

    # In one statement: nobody listens while the job is announced.
    sql.run(f"select pg_terminate_backend(pid, 5000), :schema.add_job('work') from ({LISTENERS}) _")

    await recorder.wait_for(ListenFailed)
    await recorder.wait_for(ListenStarted)
    await recorder.wait_for(JobSucceeded)


async def test_a_lost_connection_is_noticed_at_once(start, recorder, sql, caplog):
    await start({"work": nothing}, poll_interval=HOUR)
    await fall_asleep(recorder, sql)

    sql.run(f"select pg_terminate_backend(pid) from ({LISTENERS}) _")

    await recorder.wait_for(ListenFailed, timeout=3)
    await recorder.wait_for(ListenStarted)
    assert len(recorder.events_of(ListenFailed)) == 1
    assert [each for each in caplog.records if each.name == "asyncio"] == []


@pytest.mark.feature("F102")
async def test_as_many_idle_workers_wake_as_jobs_were_announced(start, recorder, sql):
    together = asyncio.Barrier(5)

    async def meet(payload: object) -> None:
        await together.wait()

    runner = await start({"meet": meet}, concurrency=8, poll_interval=HOUR)
    await fall_asleep(recorder, sql, workers=8)

    await runner.add_jobs([JobSpec("meet") for _ in range(5)])

    await recorder.wait_for(JobSucceeded, count=5)
    [heard] = recorder.events_of(ListenNotified)
    assert '"count":5' in heard.payload.replace(" ", "")


@pytest.mark.feature("F102")
async def test_idle_workers_without_a_job_stay_idle(start, recorder, sql):
    may_end = asyncio.Event()

    async def work(payload: object) -> None:
        await may_end.wait()

    await start({"work": work}, concurrency=8, poll_interval=HOUR, local_queue=None)
    await fall_asleep(recorder, sql, workers=8)

    sql.run("select :schema.add_job('work')")

    await recorder.wait_for(JobStarted)
    assert len(recorder.events_of(GetJobStarted)) == 1
    may_end.set()


@pytest.mark.feature("F102")
async def test_jobs_announced_while_all_are_busy_are_found_afterwards(start, recorder, sql):
    may_end = asyncio.Event()

    async def work(payload: object) -> None:
        await may_end.wait()

    await start({"work": work}, poll_interval=HOUR)
    await fall_asleep(recorder, sql)
    sql.run("select :schema.add_job('work')")
    await recorder.wait_for(JobStarted)

    for n in range(2, 5):
        sql.run("select :schema.add_job('work')")
        # Heard although nobody is free.
        await recorder.wait_for(ListenNotified, count=n)
    may_end.set()

    await recorder.wait_for(JobSucceeded, count=4)


@pytest.mark.feature("F102")
async def test_a_job_announced_while_a_fetch_is_under_way_is_not_missed(
    start, recorder, sql, monkeypatch
):
    late = LateAnswers(monkeypatch, "check_ready_jobs")
    await start({"work": nothing}, poll_interval=HOUR)
    await fall_asleep(recorder, sql)

    late.hold()
    sql.run("""notify "jobs:insert", '{"count": 1}'""")
    await late.answered.wait()
    # That fetch has found nothing, and its worker does not know it yet.
    sql.run("select :schema.add_job('work')")
    await recorder.wait_for(ListenNotified, count=2)
    late.let_go()

    await recorder.wait_for(JobSucceeded)


@pytest.mark.feature("F102")
@pytest.mark.parametrize("statement", ["claim_first_job", "claim_plain_jobs"])
async def test_a_job_announced_while_a_fetch_claims_all_ready_jobs_is_not_missed(
    start, recorder, sql, monkeypatch, statement
):
    late = LateAnswers(monkeypatch, statement)
    if statement != "claim_first_job":
        monkeypatch.setattr(JobFetcher, "_expects_one_job", False)
    await start({"work": nothing}, poll_interval=HOUR)
    await fall_asleep(recorder, sql)

    late.hold()
    sql.run("select :schema.add_job('work')")
    await late.answered.wait()
    sql.run("select :schema.add_job('work')")
    await recorder.wait_for(ListenNotified, count=2)
    late.let_go()

    await recorder.wait_for(JobSucceeded, count=2)


class LateAnswers:
    """Lets the answers of a statement arrive when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
        self.answered = asyncio.Event()
        self._may_go = asyncio.Event()
        self._may_go.set()
        run_on = PsycopgDatabase._run_on

        async def run_late(database: Any, connection: Any, query: Any) -> Any:
            answer = await run_on(database, connection, query)
            if query.statement == statement:
                self.answered.set()
                await self._may_go.wait()
            return answer

        monkeypatch.setattr(PsycopgDatabase, "_run_on", run_late)

    def hold(self) -> None:
        self.answered.clear()
        self._may_go.clear()

    def let_go(self) -> None:
        self._may_go.set()


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "{}",
        "[]",
        "null",
        '{"count": null}',
        '{"count": "9"}',
        '{"count": -1}',
        "\x01",
        "[" * 3000,
    ],
)
async def test_a_notification_without_a_count_wakes_one_worker(start, recorder, sql, payload):
    await start({"work": nothing}, concurrency=2, poll_interval=HOUR, local_queue=None)
    await fall_asleep(recorder, sql, workers=2)

    sql.run("select pg_notify('jobs:insert', $1)", payload)

    await recorder.wait_for(GetJobEmpty)
    assert len(recorder.events_of(GetJobStarted)) == 1


async def test_a_notification_of_zero_jobs_wakes_no_worker(start, recorder, sql):
    await start({"work": nothing}, poll_interval=HOUR)
    await fall_asleep(recorder, sql)

    sql.run("""notify "jobs:insert", '{"count": 0}'""")
    await recorder.wait_for(ListenNotified)
    sql.run("select :schema.add_job('work')")
    await recorder.wait_for(JobSucceeded)

    before = recorder.names[: recorder.names.index("job:start")]
    assert before.count("worker:getJob:start") == 1


async def test_a_flood_of_notifications_makes_a_worker_poll_for_a_while_and_listen_again(
    start, recorder, sql, stranger
):
    timings = WorkerTimings(listen=ListenTimings(flood_poll_duration_seconds=3.0))
    await start({"work": nothing}, poll_interval=HOUR, timings=timings)
    await fall_asleep(recorder, sql)

    # In one transaction, so that they come at once.
    stranger.execute(
        "select count(pg_notify('jobs:insert', number::text)) "
        f"from generate_series(1, {4 * MAX_NOTIFICATIONS_PER_SECOND}) as number"
    )
    [failed] = await recorder.wait_for(ListenFailed)
    await wait_until(lambda: not sql.run(LISTENERS))
    heard = len(recorder.events_of(ListenNotified))
    sql.run("select :schema.add_job('work')")
    await recorder.wait_for(JobSucceeded)

    assert isinstance(failed.error, TooManyNotifications)
    # Most of them are neither read nor announced.
    assert heard < MAX_NOTIFICATIONS_PER_SECOND
    recorder.clear()
    await recorder.wait_for(ListenStarted)
    await fall_asleep(recorder, sql)
    sql.run("select :schema.add_job('work')")
    await recorder.wait_for(JobSucceeded)


# Polling


@pytest.mark.feature("F101", "F150")
async def test_polling_finds_jobs_without_listening(start, recorder, sql):
    runner = await start({"work": nothing}, poll_interval=SOON, listen=False)
    await recorder.wait_for(GetJobEmpty, count=2)

    await runner.add_jobs([JobSpec("work") for _ in range(3)])

    await recorder.wait_for(JobSucceeded, count=3)
    assert not recorder.events_of(ListenStarted)
    assert sql.run(LISTENERS) == []


@pytest.mark.feature("F101", "F88")
async def test_polling_finds_a_job_when_its_time_has_come(start, recorder):
    runner = await start({"work": nothing}, poll_interval=SOON)

    job = await runner.add_job("work", run_at=timedelta(milliseconds=300))

    [started] = await recorder.wait_for(JobStarted)
    assert started.job.locked_at is not None
    assert started.job.locked_at >= job.run_at


@pytest.mark.feature("F101", "F204", "F205")
async def test_polling_finds_a_failed_job_when_its_delay_is_over(start, recorder, sql):
    await start({"work": fail}, poll_interval=SOON)
    sql.run("select :schema.add_job('work', max_attempts := 2)")

    first, second = await recorder.wait_for(JobErrored, count=2)

    assert [first.job.attempts, second.job.attempts] == [1, 2]
    assert first.job.locked_at is not None
    assert second.job.locked_at is not None
    # e to the first attempt: 2.718 seconds after it had failed.
    assert (second.job.locked_at - first.job.locked_at).total_seconds() > 2.7


@pytest.mark.feature("F101")
async def test_a_poll_wakes_more_workers_while_there_is_more_to_do(start, recorder, sql):
    together = asyncio.Barrier(4)

    async def meet(payload: object) -> None:
        await together.wait()

    runner = await start({"meet": meet}, concurrency=4, poll_interval=SOON, listen=False)
    await recorder.wait_for(GetJobEmpty, count=4)

    await runner.add_jobs([JobSpec("meet") for _ in range(4)])

    await recorder.wait_for(JobSucceeded, count=4)


# Named queues


async def test_an_idle_worker_wakes_for_a_queue_that_another_one_left(start, recorder, sql):
    may_end, second_ran = asyncio.Event(), asyncio.Event()

    async def work(payload: Any) -> None:
        if payload == "first of queue":
            await may_end.wait()
        elif payload == "second of queue":
            second_ran.set()
        else:
            await second_ran.wait()

    runner = await start({"work": work}, concurrency=2, poll_interval=HOUR)
    await fall_asleep(recorder, sql, workers=2)
    await runner.add_job("work", "first of queue", queue_name="q")
    await recorder.wait_for(JobStarted)
    await runner.add_job("work", "second of queue", queue_name="q")
    await recorder.wait_for(GetJobEmpty)

    # The worker of the first takes what is more urgent: the other one must see to the queue.
    insert_unheard(sql, "urgent", priority=-1)
    may_end.set()

    await recorder.wait_for(JobSucceeded, count=3)


def insert_unheard(sql: Sql, payload: str, *, priority: int) -> None:
    """Add a job that is not announced."""
    sql.run(
        "insert into :schema._private_jobs (task_id, payload, priority) "
        "select id, to_json($1::text), $2 from :schema._private_tasks",
        payload,
        priority,
    )


@pytest.mark.feature("F92", "F5")
async def test_two_pools_keep_a_named_queue_in_order(start, recorder):
    running = 0
    overlaps = []

    async def work(payload: object) -> None:
        nonlocal running
        running += 1
        overlaps.append(running)
        await asyncio.sleep(0.001)
        running -= 1

    runners = [await start({"work": work}, concurrency=2, poll_interval=SOON) for _ in range(2)]
    await runners[0].add_jobs([JobSpec("work", n, queue_name="q") for n in range(20)])

    done = await recorder.wait_for(JobSucceeded, count=20)
    assert set(overlaps) == {1}
    assert [event.job.payload for event in done] == list(range(20))


# Several pools


@pytest.mark.feature("F5", "F95")
async def test_two_pools_share_the_work_and_run_each_job_once(start, recorder):
    together = asyncio.Barrier(2)
    seen: list[object] = []

    async def meet(payload: Any) -> None:
        seen.append(payload)
        await together.wait()

    runners = [await start({"meet": meet}, poll_interval=HOUR) for _ in range(2)]
    await runners[0].add_jobs([JobSpec("meet", n) for n in range(20)])

    done = await recorder.wait_for(JobSucceeded, count=20)
    assert sorted(map(int, map(str, seen))) == list(range(20))
    assert len({event.pool_id for event in done}) == 2


# Tasks whose rows change


@pytest.mark.feature("F94")
async def test_a_task_whose_row_was_created_again_is_found(start, recorder, sql):
    timings = WorkerTimings(claim=ClaimTimings(task_check_interval_seconds=0.0))
    await start({"work": nothing}, poll_interval=HOUR, timings=timings)
    await fall_asleep(recorder, sql)
    [(old,)] = sql.run("delete from :schema._private_tasks returning id")

    sql.run("select :schema.add_job('work')")

    await recorder.wait_for(JobSucceeded)
    assert sql.value("select id from :schema._private_tasks") != old


@pytest.mark.feature("F94")
async def test_jobs_of_other_tasks_wait_for_a_worker_that_serves_them(start, recorder, sql):
    await start({"mine": nothing}, poll_interval=HOUR)
    sql.run("select :schema.add_job('yours', priority := -1), :schema.add_job('mine')")
    [first] = await recorder.wait_for(JobSucceeded)

    await start({"yours": nothing}, poll_interval=HOUR)

    [_, second] = await recorder.wait_for(JobSucceeded, count=2)
    names = [first.job.task_identifier, second.job.task_identifier]
    assert names == ["mine", "yours"]


# Migrations of the future


@pytest.fixture
def stranger(database, sql) -> Any:
    """A session of a role that may do nothing here but log in."""
    name = f"stranger_{database.name}"
    sql.run(f"create role {name} login")
    with psycopg.connect(make_conninfo(database.dsn, user=name), autocommit=True) as session:
        yield session
    sql.run(f"drop role {name}")


async def test_a_forged_notification_of_a_migration_is_ignored(start, recorder, sql, stranger):
    runner = await start({"work": nothing}, poll_interval=HOUR)
    await fall_asleep(recorder, sql)

    stranger.execute("""notify "worker:migrate", '{"migrationNumber": 99, "breaking": true}'""")
    await recorder.wait_for(ListenNotified, channel="worker:migrate")
    sql.run("select :schema.add_job('work')")

    await recorder.wait_for(JobSucceeded)
    assert runner.is_ready
    assert not recorder.events_of(PoolGracefulShutdown)


async def test_a_migration_that_breaks_nothing_is_ignored(start, recorder, sql):
    runner = await start({"work": nothing}, poll_interval=HOUR)
    await fall_asleep(recorder, sql)

    migrate(sql, breaking=False)
    await recorder.wait_for(ListenNotified, channel="worker:migrate")
    sql.run("select :schema.add_job('work')")

    await recorder.wait_for(JobSucceeded)
    assert runner.is_ready


async def test_a_breaking_migration_stops_the_worker_gracefully(start, recorder, sql):
    may_end = asyncio.Event()

    async def work(payload: object) -> None:
        await may_end.wait()

    runner = await start({"work": work}, poll_interval=HOUR)
    sql.run("select :schema.add_job('work'), :schema.add_job('work')")
    await recorder.wait_for(JobStarted)

    migrate(sql, breaking=True)
    await recorder.wait_for(PoolGracefulShutdown)
    may_end.set()

    with pytest.raises(SchemaTooNew) as raised:
        await runner.wait()
    assert (raised.value.exit_code, raised.value.level) == (57, 99)
    assert len(recorder.events_of(JobSucceeded)) == 1
    assert sql.run("select locked_by from :schema.jobs") == [(None,)]


async def test_a_breaking_migration_without_a_notification_is_found_after_a_reconnect(
    start, recorder, sql
):
    runner = await start({"work": nothing}, poll_interval=HOUR)
    await fall_asleep(recorder, sql)
    sql.run("insert into :schema.migrations (id, breaking) values (99, true)")

    sql.run(f"select pg_terminate_backend(pid) from ({LISTENERS}) _")

    with pytest.raises(SchemaTooNew):
        await runner.wait()


def migrate(sql: Sql, *, breaking: bool) -> None:
    """As the reference does it: the ledger, and a word to those who run."""
    sql.run("insert into :schema.migrations (id, breaking) values (99, $1)", breaking)
    notice = f'{{"migrationNumber": 99, "breaking": {str(breaking).lower()}}}'
    sql.run("select pg_notify('worker:migrate', $1)", notice)


# Stale locks


OFTEN = {"min_reset_locked_interval": SOON, "max_reset_locked_interval": SOON}


def add_locked(sql: Sql, payload: str, age: str) -> None:
    """A job in a queue of its own, both locked so long ago by a pool that died."""
    sql.run("select :schema.add_job('work', to_json($1::text), $1)", payload)
    lock = f"set locked_by = 'dead', locked_at = now() - interval '{age}'"
    sql.run(f"update :schema._private_jobs {lock} where payload #>> '{{}}' = $1", payload)
    sql.run(f"update :schema._private_job_queues {lock} where queue_name = $1", payload)


async def test_locks_older_than_four_hours_are_released_and_their_jobs_run(start, recorder, sql):
    add_locked(sql, "old", "4 hours 1 minute")
    add_locked(sql, "young", "3 hours 59 minutes")

    await start({"work": nothing}, poll_interval=SOON, **OFTEN)
    [done] = await recorder.wait_for(JobSucceeded)
    await recorder.wait_for(ResetLockedSucceeded, count=3)

    assert done.job.payload == "old"
    assert sql.run("select queue_name, locked_by from :schema.jobs") == [("young", "dead")]
    still_locked = "select queue_name from :schema._private_job_queues where locked_by is not null"
    assert sql.run(still_locked) == [("young",)]


async def test_stale_locks_are_looked_for_again_and_again(start, recorder, sql):
    await start({"work": nothing}, poll_interval=SOON, **OFTEN)
    await recorder.wait_for(ResetLockedSucceeded, count=2)

    add_locked(sql, "old", "5 hours")

    await recorder.wait_for(JobSucceeded)
    [first, *_] = recorder.events_of(ResetLockedSucceeded)
    assert first.delay == SOON


async def test_a_sweep_that_fails_is_not_the_last(start, recorder, sql):
    sql.run("""
      create function public.refuse() returns trigger language plpgsql as $$
      begin
        raise exception 'not today';
      end
      $$
    """)
    add_locked(sql, "old", "5 hours")
    sql.run("""
      create trigger refuse before update on :schema._private_job_queues
      for each row execute function public.refuse()
    """)
    await start({"work": nothing}, poll_interval=SOON, **OFTEN)
    await recorder.wait_for(ResetLockedStarted, count=3)
    assert "resetLocked:failure" in recorder.names

    sql.run("drop trigger refuse on :schema._private_job_queues")

    await recorder.wait_for(JobSucceeded)


# What a worker adds for itself


async def test_a_job_that_a_task_adds_is_announced_like_any_other(start, recorder):
    async def count_down(payload: Any, ctx: JobContext) -> None:
        if payload:
            await ctx.add_job("count", payload - 1)

    runner = await start({"count": count_down}, poll_interval=HOUR)

    await runner.add_job("count", 5)

    done = await recorder.wait_for(JobFinished, count=6)
    assert [event.job.payload for event in done] == [5, 4, 3, 2, 1, 0]
