"""A worker that others take for dead, and that comes back: nothing of it does any harm."""

import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from graphile_worker import sync
from tests.support.processes import Program, Programs, eventually
from tests.support.proxy import Connection, Mode
from tests.support.sql import Sql
from tests.support.tiers import size

# The same tasks in every worker; they end when there is a file that is named like theirs.
APP = """
import asyncio
import os
import time

from graphile_worker import App, JobContext, SyncJobContext

ME = os.environ["ME"]
EFFECT = "insert into effects values (%s, %s)"

app = App()


def say(what: str, ctx: SyncJobContext, n: int) -> None:
    line = f"{what} {n} {ctx.job.attempts} {ctx.pool_id} {time.time()}\\n"
    os.write(1, line.encode())


async def until_told() -> None:
    while not os.path.exists(ME):
        await asyncio.sleep(0.02)


@app.task
async def linger(ctx: JobContext, n: int) -> None:
    say("began", ctx, n)
    try:
        await until_told()
    except asyncio.CancelledError:
        say("cancelled", ctx, n)
        raise
    say("ended", ctx, n)


@app.task
async def stay(ctx: JobContext, n: int) -> None:
    say("began", ctx, n)
    if ME == "zombie":
        await asyncio.Event().wait()
    await until_told()
    say("ended", ctx, n)


@app.task
async def write(ctx: JobContext, n: int) -> None:
    async with ctx.transaction() as connection:
        await connection.execute(EFFECT, [n, ME])
        say("began", ctx, n)
        await until_told()
    say("ended", ctx, n)


@app.task
def linger_in_thread(ctx: SyncJobContext, n: int) -> None:
    say("began", ctx, n)
    while not os.path.exists(ME):
        time.sleep(0.02)
    say("ended", ctx, n)


@app.task
def heed_in_thread(ctx: SyncJobContext, n: int) -> None:
    say("began", ctx, n)
    while not os.path.exists(ME):
        if ctx.cancelled:
            say("cancelled", ctx, n)
            raise asyncio.CancelledError
        time.sleep(0.02)
    say("ended", ctx, n)


@app.task
def write_in_thread(ctx: SyncJobContext, n: int) -> None:
    with ctx.transaction() as connection:
        connection.execute(EFFECT, [n, ME])
        say("began", ctx, n)
        while not os.path.exists(ME):
            time.sleep(0.02)
    say("ended", ctx, n)


async def be_zombies_own(ctx: JobContext, n: int) -> None:
    say("ended", ctx, n)


if ME == "zombie":
    app.task(be_zombies_own)
"""

# Who held which job when, seen from inside the database: no worker's word is taken for it.
WATCH = """
create table effects (n int, by text);
create table held (job bigint, queue int, holder text, began timestamptz, ended timestamptz);
create function watch() returns trigger language plpgsql as $body$
begin
  if tg_op = 'UPDATE' and old.locked_by is not distinct from new.locked_by then
    return null;
  end if;
  update held set ended = clock_timestamp() where job = old.id and ended is null;
  if tg_op = 'UPDATE' and new.locked_by is not null then
    insert into held values (new.id, new.job_queue_id, new.locked_by, clock_timestamp(), null);
  end if;
  return null;
end
$body$;
create trigger watch after update or delete on :schema._private_jobs
for each row execute function watch();
"""

OVERLAPS = """
select count(*) from (
  select began < max(coalesce(ended, 'infinity')) over (
    partition by {by} order by began rows between unbounded preceding and 1 preceding
  ) as too_early
  from held where {by} is not null
) as holds where too_early
"""

LOCKED = """
select jobs.locked_by, job_queues.locked_by, jobs.attempts, count(*)
from :schema._private_jobs as jobs
left join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
group by 1, 2, 3
"""

LEFT = """
select (select count(*) from :schema._private_jobs)
  + (select count(*) from :schema._private_job_queues where locked_by is not null)
"""

RECOVERED = "select count(*) from :ext_schema.recoveries"

# In every statement that takes jobs, and in no other.
FETCH = b"set attempts = jobs.attempts + 1"

REFUSED = "while it ran, result discarded"

# Seconds of the leases. In the gate a busy machine may delay a worker: by seconds where its lease
# ends, by more where its database comes back in time.
LEASE = size(gate=8.0, nightly=4.0)
LEASE_TO_GIVE_UP = size(gate=15.0, nightly=8.0)
LEASE_TO_KEEP = size(gate=30.0, nightly=6.0)

ASYNC = ("linger", "stay", "write")
PLAIN = ("linger_in_thread", "heed_in_thread", "write_in_thread")


@dataclass(frozen=True)
class Said:
    """A line that a task printed: its time, the attempt and the id of its pool."""

    n: int
    attempt: int
    pool_id: str
    at: float


def said(worker: Program, what: str) -> list[Said]:
    """Return the lines of a worker's tasks with this word."""
    found = re.findall(rf"^{what} (\d+) (\d+) (\S+) (\S+)$", worker.out, re.M)
    return [Said(int(n), int(attempt), pool_id, float(at)) for n, attempt, pool_id, at in found]


def by_number(sayings: list[Said]) -> dict[int, Said]:
    """By the number of the job, none of which may say it twice."""
    found = {each.n: each for each in sayings}
    assert len(found) == len(sayings), sayings
    return found


def numbers(worker: Program, what: str) -> list[int]:
    return sorted(each.n for each in said(worker, what))


def pool_id_of(worker: Program) -> str:
    """The one id under which its tasks began so far."""
    (pool_id,) = {each.pool_id for each in said(worker, "began")}
    return pool_id


class Field:
    """Workers with names, and jobs for them; each second job is in its own named queue."""

    def __init__(self, programs: Programs, client: sync.Client, sql: Sql) -> None:
        self._programs = programs
        self._client = client
        self._sql = sql
        self.count = 0
        self.ids: dict[int, int] = {}

    def start(self, name: str, threshold: float, *more: str, **variables: str) -> Program:
        limit = str(round(threshold * 1000))
        arguments = ("--app", "app:app", "-j", "20", "--lease-duration", limit, *more)
        return self._programs.worker(*arguments, ME=name, **variables)

    def add(self, *tasks: str) -> None:
        for task in tasks:
            queue = f"queue {self.count}" if self.count % 2 else None
            job = self._client.add_job(task, {"n": self.count}, queue_name=queue)
            self.ids[self.count] = job.id
            self.count += 1

    def let_end(self, name: str) -> None:
        """Let the tasks of that worker end."""
        (self._programs.folder / name).touch()

    def wait_until_empty(self) -> None:
        eventually(lambda: self._sql.value(LEFT) == 0, "nothing is left, and nothing locked")

    def wait_until(self, what: str, worker: Program, count: int) -> None:
        def look() -> bool:
            assert worker.is_running, worker.err
            return len(said(worker, what)) >= count

        eventually(look, f"{count} jobs say {what!r}")

    def wait_until_known(self) -> None:
        """Wait until heartbeats have recorded each start: its attempt is counted then."""
        known = "select coalesce(sum(cardinality(started_jobs)), 0) from :ext_schema.pools"
        eventually(lambda: self._sql.value(known) == self.count, "all are known to run")

    def check_goes_on(self, zombie: Program) -> None:
        """Check that it runs jobs with a new id, and stops."""
        self.add("be_zombies_own")
        self.check_runs_last(zombie)
        assert zombie.stop() == 0

    def check_runs_last(self, zombie: Program) -> None:
        """Check that it runs the last job once, with a new id; only a late claim may precede it."""
        old_ids = {each.pool_id for each in said(zombie, "began")}
        number = self.count - 1
        eventually(lambda: number in numbers(zombie, "ended"), f"it goes on: {zombie.err}")
        self.wait_until_empty()
        ended = by_number(said(zombie, "ended"))[number]
        *before, new_id = self.holders(number)
        assert (ended.attempt, ended.pool_id) == (1, new_id)
        assert new_id not in old_ids
        assert set(before) <= old_ids
        assert f"continuing as {new_id}" in zombie.err

    def holders(self, number: int) -> list[str]:
        """Return the holders of a job, in order."""
        query = "select holder from held where job = $1 order by began"
        return [holder for (holder,) in self._sql.run(query, self.ids[number])]


@pytest.fixture
def programs(programs: Programs) -> Programs:
    programs.write("app.py", APP)
    return programs


@pytest.fixture
def field(database, programs, sql) -> Iterator[Field]:
    sql.run(WATCH)
    with sync.Client(database.dsn, schema=database.schema) as client:
        yield Field(programs, client, sql)


@pytest.fixture
def through_proxy(proxy, database) -> str:
    return f"postgres://postgres@127.0.0.1:{proxy.port}/{database.name}"


# Stopped as a whole


@pytest.mark.single_version
@pytest.mark.feature("F217", "F220", "F221")
@pytest.mark.timeout(120)
def test_a_worker_paused_for_three_leases_writes_nothing_and_continues_with_a_new_id(
    field, sql, figure
):
    threshold = LEASE
    zombie = field.start("zombie", threshold)
    field.add(*ASYNC, *PLAIN, *ASYNC, *PLAIN)
    field.wait_until("began", zombie, field.count)
    field.wait_until_known()
    other = field.start("other", threshold)

    zombie.signal(signal.SIGSTOP)
    stopped = time.monotonic()
    field.wait_until("began", other, field.count)
    elsewhere = time.monotonic() - stopped
    # These end as soon as it moves again, while another worker runs their jobs.
    field.let_end("zombie")
    wait_until(stopped + 3 * threshold)
    zombie.signal(signal.SIGCONT)
    zombie.wait_for_line("lease lost")
    eventually(lambda: zombie.err.count(REFUSED) == field.count, f"all are lost: {zombie.err}")

    assert "completed job" not in zombie.err
    assert "released job" not in zombie.err
    old_id, new_id = pool_id_of(zombie), pool_id_of(other)
    half = field.count // 2
    assert set(sql.run(LOCKED)) == {(new_id, new_id, 2, half), (new_id, None, 2, half)}
    assert sql.value("select count(*) from effects") == 0
    # Those that could not be cancelled in time have come to their end here too.
    assert {3, 9} <= set(numbers(zombie, "ended"))

    field.let_end("other")
    field.wait_until("ended", other, field.count)
    field.wait_until_empty()
    assert numbers(other, "ended") == list(field.ids)
    assert {each.attempt for each in said(other, "began")} == {2}
    written = [n for n in field.ids if n % 3 == 2]
    assert sql.run("select n, by from effects order by n") == [(n, "other") for n in written]
    holds = Counter(sql.run("select job, holder from held"))
    assert holds == Counter((job, by) for job in field.ids.values() for by in (old_id, new_id))
    figure(
        f"SIGSTOP for {3 * threshold:.0f} s with {field.count} running jobs, lease of "
        f"{threshold:.0f} s: all ran elsewhere after {elsewhere:.1f} s, once; 0 of its writes "
        "landed"
    )
    field.check_goes_on(zombie)


# Cut off from the database


@pytest.mark.single_version
@pytest.mark.feature("F217", "F220", "F221")
@pytest.mark.timeout(120)
def test_a_worker_without_its_database_abandons_its_jobs_before_another_worker_runs_them(
    field, sql, proxy, through_proxy, figure
):
    threshold = LEASE_TO_GIVE_UP
    zombie = field.start("zombie", threshold, DATABASE_URL=through_proxy)
    field.add(*["linger", "heed_in_thread"] * 4)
    field.wait_until("began", zombie, field.count)
    field.wait_until_known()
    other = field.start("other", threshold)

    proxy.mode = Mode.STALL
    cut_off = time.monotonic()
    zombie.wait_for_line("lease expired")
    field.wait_until("began", other, field.count)
    field.let_end("other")
    field.wait_until("ended", other, field.count)
    wait_until(cut_off + 1.5 * threshold)
    proxy.mode = Mode.PASS
    zombie.wait_for_line("lease lost")
    eventually(lambda: zombie.err.count(REFUSED) == field.count, f"all are lost: {zombie.err}")
    field.wait_until_empty()

    silence = seconds_of_silence(zombie)
    assert silence < threshold
    assert said(zombie, "ended") == []
    left, began = by_number(said(zombie, "cancelled")), by_number(said(other, "began"))
    assert set(left) == set(began) == set(field.ids)
    taken = {n: end_of_hold(sql, job, pool_id_of(zombie)) for n, job in field.ids.items()}
    assert [n for n in field.ids if not left[n].at < taken[n] < began[n].at] == []
    assert {each.attempt for each in began.values()} == {2}
    assert sql.value("select count(*) from held") == 2 * field.count
    assert sql.value(OVERLAPS.format(by="job")) == 0
    assert sql.value(OVERLAPS.format(by="queue")) == 0
    margin = min(taken[n] - left[n].at for n in field.ids)
    figure(
        f"no database for {1.5 * threshold:.0f} s, lease of {threshold:.0f} s: jobs given up after "
        f"{silence:.1f} s, {margin:.1f} s or more before they were taken; 0 overlapping holds"
    )
    field.check_goes_on(zombie)


@pytest.mark.single_version
@pytest.mark.feature("F217", "F220", "F221")
@pytest.mark.timeout(120)
def test_a_completion_after_another_worker_ran_the_job_is_not_reported_as_success(
    field, sql, proxy, through_proxy
):
    threshold = LEASE
    zombie = field.start("zombie", threshold, DATABASE_URL=through_proxy)
    field.add("linger_in_thread", "linger_in_thread")
    field.wait_until("began", zombie, field.count)
    other = field.start("other", threshold)

    proxy.mode = Mode.STALL
    zombie.wait_for_line("lease expired")
    field.let_end("zombie")
    field.wait_until("ended", zombie, field.count)
    # The first try to write it is lost with its connection: it may have got through.
    proxy.reset()
    field.let_end("other")
    field.wait_until("ended", other, field.count)
    field.wait_until_empty()
    proxy.mode = Mode.PASS
    zombie.wait_for_line("lease lost")

    eventually(lambda: zombie.err.count(REFUSED) == field.count, f"all are lost: {zombie.err}")
    assert "completed job" not in zombie.err
    assert other.err.count("completed job") == field.count
    field.check_goes_on(zombie)


@pytest.mark.single_version
@pytest.mark.feature("F217", "F220")
@pytest.mark.timeout(120)
def test_a_claim_that_arrives_after_its_worker_was_declared_dead_is_released(
    field, sql, proxy, through_proxy
):
    # Long enough to poll before it knows that it is cut off.
    threshold = LEASE_TO_GIVE_UP
    # Preparing a statement is a separate request, which would be the one that arrives late.
    how = ("--no-prepared-statements", "--poll-interval", "500")
    zombie = field.start("zombie", threshold, *how, DATABASE_URL=through_proxy)
    field.add("linger", "linger")
    field.wait_until("began", zombie, field.count)
    other = field.start("other", threshold)

    # A fetch that had reached the server would not be late.
    proxy.put_between_requests(Mode.STALL)
    late: set[Connection] = set()

    def look() -> bool:
        late.update(each for each in proxy.connections if each.is_waiting and FETCH in each.asked)
        return bool(late)

    eventually(look, "a fetch is on its way")
    field.let_end("other")
    field.wait_until("ended", other, field.count)
    proxy.pass_all_but(lambda connection: connection in late)
    zombie.wait_for_line("continuing as")
    # So that it is the late fetch that takes the next job.
    zombie.signal(signal.SIGSTOP)
    field.add("be_zombies_own")
    proxy.mode = Mode.PASS
    old_id = pool_id_of(zombie)
    eventually(lambda: field.holders(2) == [old_id], "the late fetch takes it")
    zombie.signal(signal.SIGCONT)

    field.check_runs_last(zombie)
    assert len(field.holders(2)) == 2
    field.check_goes_on(zombie)


@pytest.mark.feature("F220")
@pytest.mark.timeout(120)
def test_a_worker_whose_database_returns_in_time_keeps_its_jobs(field, sql, proxy, through_proxy):
    threshold = LEASE_TO_KEEP
    worker = field.start("worker", threshold, DATABASE_URL=through_proxy, GRAPHILE_LOGGER_DEBUG="1")
    field.add(*["linger", "linger_in_thread"] * 3)
    field.wait_until("began", worker, field.count)
    other = field.start("other", threshold)

    proxy.mode = Mode.STALL
    worker.wait_for_line("heartbeat failed")
    # Their ends cannot be written yet.
    field.let_end("worker")
    field.wait_until("ended", worker, field.count)
    proxy.mode = Mode.PASS
    field.wait_until_empty()

    ended = by_number(said(worker, "ended"))
    assert {n: each.attempt for n, each in ended.items()} == dict.fromkeys(field.ids, 1)
    assert sql.value("select count(*) from held") == field.count
    assert sql.value(RECOVERED) == 0
    assert "lease expired" not in worker.err
    assert REFUSED not in worker.err
    assert "recovered job" not in other.err
    assert worker.stop() == 0


@pytest.mark.single_version
@pytest.mark.feature("F220")
@pytest.mark.timeout(120)
def test_a_single_worker_runs_its_abandoned_jobs_again_without_counting_an_attempt(
    field, sql, proxy, through_proxy
):
    threshold = LEASE_TO_GIVE_UP
    worker = field.start("worker", threshold, DATABASE_URL=through_proxy)
    field.add(*["linger", "heed_in_thread"] * 3)
    field.wait_until("began", worker, field.count)

    proxy.mode = Mode.STALL
    cut_off = time.monotonic()
    worker.wait_for_line("lease expired")
    field.wait_until("cancelled", worker, field.count)
    wait_until(cut_off + 1.5 * threshold)
    proxy.mode = Mode.PASS
    field.wait_until("began", worker, 2 * field.count)
    field.let_end("worker")
    field.wait_until("ended", worker, field.count)
    field.wait_until_empty()
    returned = "attempt not counted"
    eventually(lambda: worker.err.count(returned) == field.count, f"all returned: {worker.err}")

    assert seconds_of_silence(worker) < threshold
    assert numbers(worker, "cancelled") == list(field.ids)
    assert numbers(worker, "began") == sorted([*field.ids, *field.ids])
    assert numbers(worker, "ended") == list(field.ids)
    assert {each.attempt for each in said(worker, "began")} == {1}
    assert sql.value(RECOVERED) == 0
    assert REFUSED not in worker.err
    # It was not declared dead, so it keeps its id.
    assert sql.run("select distinct holder from held") == [(pool_id_of(worker),)]
    assert worker.stop() == 0


def wait_until(moment: float) -> None:
    """How long it lasts is what the test is about."""
    time.sleep(max(0.0, moment - time.monotonic()))


def end_of_hold(sql: Sql, job: int, pool_id: str) -> float:
    """Return when this pool lost the job, by the database."""
    ended: float = sql.value(
        "select extract(epoch from ended)::float8 from held where job = $1 and holder = $2",
        job,
        pool_id,
    )
    return ended


def seconds_of_silence(worker: Program) -> float:
    """Return the seconds since its last heartbeat when it abandoned its jobs."""
    found = re.findall(r"lease expired after ([\d.]+) s without a heartbeat", worker.err)
    assert len(found) == 1, worker.err
    return float(found[0])
