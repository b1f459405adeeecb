"""Workers of all languages on one schema, at the same time: every job once, every queue in turn."""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from graphile_worker import JobSpec, lane, sync
from tests.support.languages import (
    LANGUAGES,
    NODE_18,
    PYTHON,
    RAN,
    RUST_13,
    RUST_14,
    Language,
    Workers,
    needs_rust,
)
from tests.support.processes import Program, Programs, eventually
from tests.support.sql import Sql
from tests.support.tiers import size

CONCURRENCY = 10
JOBS = size(gate=1_000, nightly=20_000)
FEWER_JOBS = size(gate=200, nightly=2_000)
TENANTS = 12
LANES = 4

# Who held which job when, seen from inside the database: no worker's word is taken for it.
WATCH = f"""
{RAN};
create table made (job bigint, key text);
create table held (
  job bigint, queue int, holder text, attempts int, began timestamptz, ended timestamptz
);
create index on held (job) where ended is null;
create table gone (job bigint, attempts int);
create function watch() returns trigger language plpgsql as $body$
begin
  if tg_op = 'INSERT' then
    insert into made values (new.id, new.key);
  elsif tg_op = 'DELETE' then
    update held set ended = clock_timestamp() where job = old.id and ended is null;
    insert into gone values (old.id, old.attempts);
  -- Also if another worker held it: the rows of both then overlap.
  elsif new.locked_at is not null and old.locked_by is distinct from new.locked_by then
    insert into held
    values (new.id, new.job_queue_id, new.locked_by, new.attempts, clock_timestamp(), null);
  elsif old.locked_at is not null and new.locked_at is null then
    update held set ended = clock_timestamp() where job = new.id and ended is null;
  end if;
  return null;
end
$body$;
create trigger watch after insert or update or delete on :schema._private_jobs
for each row execute function watch();
"""

# Holds of one job, or of one named queue, that began before another one had ended.
OVERLAPS = """
select count(*) from (
  select
    began < max(ended) over (
      partition by job order by began rows between unbounded preceding and 1 preceding
    ) as of_job,
    queue is not null and began < max(ended) over (
      partition by queue order by began rows between unbounded preceding and 1 preceding
    ) as of_queue
  from held
) as holds where of_job or of_queue
"""

# The largest number of jobs of one tenant that were held at the same time.
MOST_PER_TENANT = """
select max(held_at_once) from (
  select sum(change) over (
    partition by tenant order by changed_at, change
    rows between unbounded preceding and current row
  ) as held_at_once
  from held
  join :schema._private_job_queues as job_queues on job_queues.id = held.queue,
  lateral split_part(job_queues.queue_name, '#', 1) as tenant,
  lateral (values (began, 1), (ended, -1)) as changes (changed_at, change)
) as changes
"""


class Fleet:
    """Two workers of each language, and the jobs between them."""

    def __init__(
        self,
        database: Any,
        programs: Programs,
        members: Sequence[tuple[Language, dict[str, Any]]],
    ) -> None:
        workers = Workers(programs, database)
        self.start_adding = workers.start_adding
        self._members = [
            workers.launch(language, concurrency=CONCURRENCY, **options)
            for language, options in members
        ]
        for each in self._members:
            workers.wait_until_ready(each)

    def stop(self) -> list[int]:
        """Return their exit codes in the order of the members."""
        for each in self._members:
            each.signal(signal.SIGTERM)
        return [each.end() for each in self._members]


BATCHED_NODE = (NODE_18, {"preset": {"completeJobBatchDelay": 0}})
DEFAULT_NODE: tuple[Language, dict[str, Any]] = (NODE_18, {})
DEFAULT_PYTHON: tuple[Language, dict[str, Any]] = (PYTHON, {})


@contextmanager
def fleet(
    database: Any, folder: Path, members: Sequence[tuple[Language, dict[str, Any]]]
) -> Iterator[Fleet]:
    with Programs(folder) as programs:
        yield Fleet(database, programs, members)


@pytest.fixture
def watched(either_database) -> Iterator[Sql]:
    sql = Sql(either_database.dsn, either_database.schema)
    sql.run(WATCH)
    yield sql
    sql.close()


TWO = ("both", "both", "both", "python_only", "node_only")
THREE = ("both", "both", "python_only", "node_only", "rust_only", "both", "both")


def add_jobs(database: Any, count: int, names: Sequence[str] = TWO) -> None:
    """Half of them in lanes of tenants; a tenth fails once; some tasks only one language knows."""
    specs = [
        JobSpec(
            names[number % len(names)],
            {"fail_first": number % 10 == 7},
            queue_name=lane("tenant", number % TENANTS, of=LANES) if number // 50 % 2 else None,
        )
        for number in range(count)
    ]
    with sync.Client(database.dsn, schema=database.schema) as client:
        for start in range(0, count, 1000):
            client.add_jobs(specs[start : start + 1000])


def wait_until_empty(sql: Sql, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while left := sql.value("select count(*) from :schema._private_jobs"):
        assert time.monotonic() < deadline, f"{left} jobs are left"
        time.sleep(0.2)


UNKEYED = "where job in (select job from made where key is null)"


def check(sql: Sql, unkeyed: int) -> dict[str, int]:
    """What must hold once all is done; how many jobs each language finished."""
    assert sql.value(f"select count(*) from made {UNKEYED}") == unkeyed
    count = sql.value("select count(*) from made")
    assert sql.value("select count(*) from gone") == count
    assert sql.value("select count(distinct job) from gone") == count
    # The task of each job ended once, at its first or second attempt as its payload sets.
    assert sql.value("select count(*) from ran") == count
    assert sql.value("select count(distinct job) from ran") == count
    attempts = dict(sql.run(f"select attempts, count(*) from gone {UNKEYED} group by attempts"))
    assert attempts == {1: unkeyed * 9 // 10, 2: unkeyed // 10}
    # Jobs that were prefetched and waited for too long were released and claimed again.
    assert sql.value("select count(*) from held") >= count + unkeyed // 10
    assert sql.value("select count(*) from held where ended is null") == 0
    assert sql.value(OVERLAPS) == 0
    assert sql.value(MOST_PER_TENANT) <= LANES
    locked = "select count(*) from :schema._private_job_queues where locked_by is not null"
    assert sql.value(locked) == 0
    return dict(sql.run("select language, count(*) from ran group by language"))


@pytest.mark.feature("F5", "F92", "F95")
@pytest.mark.single_version
@pytest.mark.timeout(300)
def test_two_python_and_two_node_workers_run_every_job_once_and_every_queue_in_turn(
    either_database, watched, tmp_path, figure
):
    members = [BATCHED_NODE, BATCHED_NODE, DEFAULT_PYTHON, DEFAULT_PYTHON]
    with fleet(either_database, tmp_path, members) as workers:
        began = time.monotonic()
        add_jobs(either_database, JOBS)
        wait_until_empty(watched, 240)
        seconds = time.monotonic() - began
        codes = workers.stop()

    done = check(watched, JOBS)
    # Node re-raises the signal that ended it.
    assert codes[2:] == [0, 0]
    # Each language has a fifth to itself, so neither could have done it all.
    assert min(done.values()) >= JOBS // 5, done
    most = watched.value(MOST_PER_TENANT)
    figure(
        f"mixed fleet: {JOBS:,} jobs in {seconds:.0f} s, finished by {done}, overlaps 0, "
        f"at most {most} of a tenant with {LANES} lanes at once"
    )


@pytest.mark.single_version
@pytest.mark.timeout(120)
def test_a_mixed_fleet_runs_each_job_once_with_default_node_workers(
    either_database, watched, tmp_path, figure
):
    members = [DEFAULT_NODE, DEFAULT_NODE, DEFAULT_PYTHON, DEFAULT_PYTHON]
    with fleet(either_database, tmp_path, members) as workers:
        add_jobs(either_database, FEWER_JOBS)
        wait_until_empty(watched, 90)
        workers.stop()

    done = check(watched, FEWER_JOBS)
    figure(f"mixed fleet, Node's own defaults: {FEWER_JOBS:,} jobs, finished by {done}, overlaps 0")


# Three languages

# The older release fetches single jobs, and the newer one with its fastest settings.
BOTH_RUSTS: list[tuple[Language, dict[str, Any]]] = [
    (RUST_13, {"poll_ms": 20}),
    (RUST_14, {"poll_ms": 20, "local_queue": 100, "batch_ms": 1, "recovery": {}}),
]
KEYS = size(gate=20, nightly=100)
VERSIONS = 3


def keyed_jobs(language: Language) -> list[dict[str, Any]]:
    """Several versions of each job, under keys of this language and under keys of all."""
    return [
        {
            "task": "both",
            "payload": {"key": f"{whose} {number}", "version": version},
            "job_key": f"{whose} {number}",
        }
        for version in range(1, VERSIONS + 1)
        for number in range(KEYS)
        for whose in (language.name, "shared")
    ]


LAST_VERSIONS = """
select count(*) from ran
where payload ->> 'key' not like 'shared %' and (payload ->> 'version')::int = $1
"""
BY_LANGUAGE = "select split_part(language, ' ', 1), count(*) from ran group by 1"


@needs_rust
@pytest.mark.feature("F5", "F92", "F95")
@pytest.mark.nightly
@pytest.mark.single_version
@pytest.mark.timeout(900)
def test_a_fleet_of_three_languages_runs_every_job_once_and_every_queue_in_turn(
    either_database, watched, tmp_path, figure
):
    members = [DEFAULT_PYTHON, DEFAULT_PYTHON, BATCHED_NODE, BATCHED_NODE, *BOTH_RUSTS]
    with fleet(either_database, tmp_path, members) as workers:
        began = time.monotonic()
        adding = [workers.start_adding(each, keyed_jobs(each)) for each in LANGUAGES]
        add_jobs(either_database, JOBS, THREE)
        assert [each.end() for each in adding] == [0, 0, 0, 0], [each.err for each in adding]
        wait_until_empty(watched, 800)
        seconds = time.monotonic() - began
        codes = workers.stop()

    assert codes[:2] == [0, 0]
    assert codes[4:] == [0, 0]
    figure(f"three languages in {seconds:.0f} s: {check_three_languages(watched)}")


def check_three_languages(sql: Sql) -> str:
    """What must hold besides once JOBS jobs and those with keys are done; the figures of it."""
    releases = check(sql, JOBS)
    # Of each key of one language, the last version ran, and whichever were running before it.
    assert sql.value(LAST_VERSIONS, VERSIONS) == len(LANGUAGES) * KEYS
    assert set(releases) == {each.name for each in LANGUAGES}
    done = dict(sql.run(BY_LANGUAGE))
    assert len(done) == 3
    assert min(done.values()) >= sum(done.values()) / 10, done
    shares = {name: f"{count / sum(done.values()):.0%}" for name, count in done.items()}
    keyed = sql.value("select count(*) from made where key is not null")
    return (
        f"{JOBS:,} jobs and {keyed:,} with keys, finished by {releases}, so {shares}, overlaps 0, "
        f"at most {sql.value(MOST_PER_TENANT)} of a tenant with {LANES} lanes at once"
    )


# Kills

# The largest age of a heartbeat at which Rust workers count another worker as alive. Python workers
# send one to their registry every 10 s.
SHORT_RECOVERY = {"heartbeat_ms": 2000, "sweep_ms": 1000, "threshold_ms": 20_000, "delay_ms": 0}

# What Python documents, and time for the jobs to run.
PYTHON_WITHIN_SECONDS = 45 + 5

HANGING = 10
# Jobs that are added before the kills. All others come after them.
JOBS_BEFORE = 2_000
# The jobs of Python and of Rust 0.14, which fetch ahead, have a task that no other victim has: so
# each victim holds its own jobs. Of the others, those that started before have no free slot.
VICTIMS: dict[Language, dict[str, Any]] = {
    PYTHON: {"tasks": ["tick"]},
    NODE_18: {"tasks": ["work"]},
    RUST_13: {"tasks": ["work"], "poll_ms": 20},
    RUST_14: {"tasks": ["work"], "poll_ms": 20, "local_queue": 100, "batch_ms": 1},
}
PREFIXES = {
    PYTHON: ("pypool-",),
    NODE_18: ("pool-", "otpool-"),
    RUST_13: ("graphile_worker_",),
    RUST_14: ("graphile_worker_",),
}

HELD = """
select payload ->> 'victim', locked_by, array_agg(id)
from :schema._private_jobs
where payload ->> 'victim' is not null
group by 1, 2
"""
TAKEN = """
select count(*) from :schema._private_jobs
where payload ->> 'victim' = $1 and locked_by is not null
"""
RENEWED = """
with queues as (
  update :schema._private_job_queues set locked_at = now()
  where locked_by in (
    select locked_by from :schema._private_jobs where payload ->> 'victim' is not null
  )
)
update :schema._private_jobs set locked_at = now()
where payload ->> 'victim' is not null and locked_by is not null
"""
HELD_BY_VICTIMS = "select count(*) from :schema._private_jobs where locked_by = any ($1::text[])"
# Jobs that another worker held after the kills, and the last end of the locks of the victim.
HELD_ELSEWHERE = """
select
  count(distinct job) filter (where holder <> $2 and began > $3),
  extract(epoch from max(ended) filter (where holder = $2) - $3)::float8
from held where job = any ($1::bigint[])
"""
# Seconds from the kills to the ends of the jobs that a victim held.
DELAYS = """
select extract(epoch from min(at) - $1)::float8, extract(epoch from max(at) - $1)::float8, count(*)
from ran where job = any ($2::bigint[]) and language not like '% victim'
"""


@needs_rust
@pytest.mark.feature("F5", "F217", "F222")
@pytest.mark.nightly
@pytest.mark.single_version
@pytest.mark.parametrize(
    ("recovery", "within_seconds"),
    [
        pytest.param(SHORT_RECOVERY, 20 + 1 + 20, id="threshold of 20 s"),
        # The defaults of Rust: a threshold of 300 s, a sweep every 60 s, and a delay of 30 s.
        pytest.param({}, 300 + 60 + 30 + 20, id="defaults", marks=pytest.mark.slow_io),
    ],
)
@pytest.mark.timeout(900)
def test_jobs_of_a_killed_worker_of_each_language_run_elsewhere(
    either_database, watched, tmp_path, figure, recovery, within_seconds
):
    newer: dict[str, Any] = {"poll_ms": 20, "local_queue": 100, "batch_ms": 1, "recovery": recovery}
    # Rust 0.13 does not start with recovery on a schema of Python or Node.
    survivors = [
        *(DEFAULT_PYTHON, DEFAULT_PYTHON, BATCHED_NODE, BATCHED_NODE),
        *((RUST_13, {"poll_ms": 20}), (RUST_14, newer)),
    ]
    with Programs(tmp_path) as programs:
        workers = Workers(programs, either_database)
        # Its registry is there before Python workers look for it, which they do every 30 s.
        workers.install(RUST_14)
        victims = [start_victim(workers, watched, each, recovery) for each in VICTIMS]
        others = Fleet(either_database, programs, survivors)
        renew_locks(watched)
        adding = [others.start_adding(each, keyed_jobs(each)) for each in LANGUAGES]
        add_jobs(either_database, JOBS_BEFORE, THREE)
        renew_locks(watched)
        held = watched.run(HELD)
        holders = [holder for _, holder, _ in held]
        held_by_victims = watched.value(HELD_BY_VICTIMS, holders)
        killed_at = watched.value("select clock_timestamp()")
        for victim in victims:
            victim.signal(signal.SIGKILL)
        add_jobs(either_database, JOBS - JOBS_BEFORE, THREE)
        assert [each.end() for each in adding] == [0, 0, 0, 0], [each.err for each in adding]
        wait_until_empty(watched, 840)
        others.stop()

    fleet_figures = check_three_languages(watched)
    # Each victim held its jobs, and no others, under one id of its language.
    assert sorted((name, len(jobs)) for name, _, jobs in held) == sorted(
        (each.name, HANGING) for each in VICTIMS
    )
    assert len(set(holders)) == len(VICTIMS)
    assert held_by_victims == HANGING * len(VICTIMS)
    of_victims = {name: (holder, jobs) for name, holder, jobs in held}
    measured = []
    for language in VICTIMS:
        holder, jobs = of_victims[language.name]
        assert holder.startswith(PREFIXES[language])
        [(elsewhere, released)] = watched.run(HELD_ELSEWHERE, jobs, holder, killed_at)
        [(first, last, count)] = watched.run(DELAYS, killed_at, jobs)
        measured.append(
            f"{language.name} released after {released:.0f} s, "
            f"run after {first:.0f} to {last:.0f} s"
        )
        assert (elsewhere, count) == (HANGING, HANGING)
        assert last < (PYTHON_WITHIN_SECONDS if language is PYTHON else within_seconds)
    figure(
        f"{HANGING} jobs of each of {len(VICTIMS)} killed workers ran elsewhere, Rust 0.14 with "
        f"{recovery or 'its default recovery'}: {', '.join(measured)}. Beside them {fleet_figures}"
    )


def start_victim(
    workers: Workers, sql: Sql, language: Language, recovery: dict[str, Any]
) -> Program:
    """Start a worker whose slots hold jobs that end in any worker but the victims."""
    options = VICTIMS[language]
    payload = {"hang_in": [victim_name(each) for each in VICTIMS], "victim": language.name}
    [task] = options["tasks"]
    jobs = [
        {
            "task": task,
            "payload": payload,
            # Keys separate them from the jobs that `check` counts.
            "job_key": f"hanging in {language.name} {number}",
            # Once released, they run before the jobs that wait.
            "priority": -10,
            **({"queue_name": f"of {language.name}"} if number == 0 else {}),
        }
        for number in range(HANGING)
    ]
    workers.add(PYTHON, jobs)
    victim = workers.start(
        language,
        **options,
        **({"recovery": recovery} if language is RUST_14 else {}),
        concurrency=HANGING,
        language=victim_name(language),
    )
    renew_locks(sql)
    eventually(lambda: sql.value(TAKEN, language.name) == HANGING, "it takes its jobs")
    return victim


def renew_locks(sql: Sql) -> None:
    """Let the victims hold their jobs since now.

    Rust workers release jobs of live workers that send no heartbeat, too, once the locks are old.
    """
    sql.run(RENEWED)


def victim_name(language: Language) -> str:
    return f"{language.name} victim"
