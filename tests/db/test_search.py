"""The jobs that a filter finds: by each field and state, negated too; pages, counts and limits."""

from datetime import UTC, datetime, timedelta

import pytest

from graphile_worker._sql.queries.search import find_job_ids
from graphile_worker._sql.queries.workers import register_pool
from graphile_worker.errors import QueryTimeoutError, SchemaMissing
from graphile_worker.ops.filters import Filter, parse_filter
from graphile_worker.ops.search import (
    QueryLimits,
    build_clauses,
    plan_count_jobs,
    plan_list_jobs,
    with_limits,
)
from graphile_worker.ops.states import JobState
from tests.support.job_table import NODE, JobTable
from tests.support.pools import open_session

# What the statements do: test_statements.py runs each of them on the oldest pair too.
pytestmark = pytest.mark.single_version

ALL_JOBS = Filter()


def found(table: JobTable, text: str) -> set[int]:
    """The ids of the jobs that a filter finds, with the list, the counts and the scan compared."""
    job_filter = parse_filter(text)
    page = table.run_plan(plan_list_jobs(job_filter, table.schemas, limit=1000))
    ids = [job.id for job in page.jobs]
    count = table.run_plan(plan_count_jobs(job_filter, table.schemas))
    _, others = table.run_plan(
        with_limits(find_job_ids(0, 2**62, 1000, build_clauses(job_filter, ())), table.schemas)
    )
    assert ids == sorted(ids, reverse=True)
    assert (count.total, sorted(others)) == (len(ids), sorted(ids))
    return set(ids)


# States


@pytest.mark.parametrize("state", JobState)
def test_each_state_is_found_and_shown(table, state):
    ids = {each: table.add_job_in_state(each) for each in JobState}

    (job,) = table.run_plan(plan_list_jobs(parse_filter(f"state:{state}"), table.schemas)).jobs

    assert (job.id, job.state) == (ids[state], state)
    assert found(table, f"-state:{state}") == set(ids.values()) - {ids[state]}


def test_every_job_is_in_one_state(table):
    for state in JobState:
        table.add_job_in_state(state)

    count = table.run_plan(plan_count_jobs(ALL_JOBS, table.schemas))

    assert dict(count.by_state) == dict.fromkeys(JobState, 1)


def test_locked_matches_running_and_stale_jobs(table):
    ids = {each: table.add_job_in_state(each) for each in JobState}

    assert found(table, "state:locked") == {ids[JobState.STALE], ids[JobState.RUNNING]}


@pytest.mark.parametrize(("lease", "state"), [("1 hour", "running"), ("0", "stale")])
def test_the_lock_of_a_pool_with_an_expired_lease_is_stale(database, table, sql, lease, state):
    with open_session(database) as connection:
        connection.run(register_pool("ours", timedelta(hours=1), {}))
    sql.run(f"update :ext_schema.pools set lease = '{lease}', seen_at = now() - interval '1 min'")
    job = table.add_job(locked_at="now()", locked_by="'ours'")

    page = table.run_plan(plan_list_jobs(ALL_JOBS, table.schemas))

    assert [(each.id, each.state) for each in page.jobs] == [(job, state)]


def test_without_the_companion_schema_only_old_locks_are_stale(table, sql):
    sql.run("drop schema :ext_schema cascade")
    young, old = table.add_job_in_state("running"), table.add_job_in_state("stale")

    assert found(table, "state:running") == {young}
    assert found(table, "state:stale") == {old}


# Names


def test_tasks(table):
    email, pdf, other = (table.add_job(name) for name in ("send_email", "render_pdf", "send_fax"))

    assert found(table, "task:send_email") == {email}
    assert found(table, "task:send_email,render_pdf") == {email, pdf}
    assert found(table, "task:send_*") == {email, other}
    assert found(table, "-task:send_*") == {pdf}
    assert found(table, "task:sendXemail") == set()
    assert found(table, "task:send") == set()


def test_queues(table):
    billing, other = (
        table.add_job(job_queue_id=table.add_queue(name)) for name in ("billing", "b")
    )
    free = table.add_job()

    assert found(table, "queue:billing") == {billing}
    assert found(table, "queue:none") == {free}
    assert found(table, "queue:billing,none") == {billing, free}
    assert found(table, "queue:b*") == {billing, other}
    assert found(table, "-queue:billing") == {other, free}
    assert found(table, "-queue:none") == {billing, other}


def test_keys(table):
    first, second = table.add_job(key="'pdf:42'"), table.add_job(key="'pdf:43'")
    percent, none = table.add_job(key="'pdf%'"), table.add_job()

    assert found(table, "key:pdf:42") == {first}
    assert found(table, "key:pdf:*") == {first, second}
    assert found(table, "key:pdf:42,none") == {first, none}
    assert found(table, "key:pdf:4*,none") == {first, second, none}
    assert found(table, "key:none") == {none}
    assert found(table, "-key:pdf:42") == {second, percent, none}
    assert found(table, "key:pdf%") == {percent}


def test_workers(table):
    locked_job, _ = table.add_job_in_state("running"), table.add_job()

    assert found(table, f"worker:{NODE}") == {locked_job}
    assert found(table, "worker:pool-0*") == {locked_job}
    assert found(table, "worker:pool") == set()


def test_errors_match_in_part_and_in_any_case(table):
    late = table.add_job(last_error="'TimeoutError: upstream timeout'")
    none, other = table.add_job(), table.add_job(last_error="'50% off'")

    assert found(table, 'error:"Upstream Timeout"') == {late}
    assert found(table, "error:time*stream") == {late}
    assert found(table, "error:0%") == {other}
    assert found(table, "-error:timeout") == {none, other}


def test_flags(table):
    both, one = (
        table.add_job(flags='\'{"a": true, "b": true}\''),
        table.add_job(flags="'{\"b\": true}'"),
    )
    none = table.add_job()

    assert found(table, "flag:a") == {both}
    assert found(table, "flag:a,b") == {both, one}
    assert found(table, "-flag:a") == {one, none}


def test_a_bare_word_is_an_id_or_part_of_a_task_a_key_or_an_error(table):
    task, key = table.add_job("TimeOuts"), table.add_job(key="'after-timeout'")
    error, other = table.add_job(last_error="'timeout'"), table.add_job()

    assert found(table, "timeout") == {task, key, error}
    assert found(table, "-timeout") == {other}
    assert found(table, str(other)) == {other}
    assert found(table, f"{task},{other}") == {task, other}


# Numbers and times


def test_numbers(table):
    ids = [table.add_job(attempts=str(n), priority=str(-n)) for n in range(4)]

    assert found(table, "attempts:>=2") == {*ids[2:]}
    assert found(table, "priority:<0") == {*ids[1:]}
    assert found(table, "attempts:0,3") == {ids[0], ids[3]}
    assert found(table, "-attempts:1..2") == {ids[0], ids[3]}
    assert found(table, f"id:{ids[0]},{ids[2]}..") == {ids[0], *ids[2:]}
    assert found(table, f"id:<={ids[1]}") == {*ids[:2]}
    assert found(table, f"-id:{ids[1]}") == {ids[0], *ids[2:]}


def test_the_age_is_the_time_since_a_job_was_due(table):
    old, young, later = (
        table.add_job(run_at=f"now() + interval '{n} minutes'") for n in (-60, -5, 5)
    )

    assert found(table, "age:>10m") == {old}
    assert found(table, "age:<10m") == {young}
    assert found(table, "age:1m..2h") == {old, young}
    assert found(table, "run:>0s") == {later}
    assert found(table, "run:<1h") == {old, young, later}
    assert found(table, "run:>-10m") == {young, later}


def test_times(table):
    first, last = (
        table.add_job(created_at=f"'{day} 12:00Z'") for day in ("2026-08-01", "2026-08-02")
    )
    new = table.add_job()

    assert found(table, "created:2026-08-01") == {first}
    assert found(table, "created:<2026-08-02T12:00Z") == {first, last}
    assert found(table, "created:<2026-08-02T13:00+02:00") == {first}
    assert found(table, "created:>-1h") == {new}
    assert found(table, "created:>2026-08-02") >= {last}


def test_times_at_the_ends_of_the_calendar(table):
    job = table.add_job()

    assert found(table, "created:>0001-01-01") == {job}
    assert found(table, "created:<9999-12-31T23:59:59.999999Z") == {job}
    assert found(table, "created:9999-12-31") == set()


# Payloads


def payload(text: str) -> dict[str, str]:
    return {"payload": f"$p${text}$p$"}


def test_payloads(table):
    number, string = (
        table.add_job(**payload('{"user": {"id": 42}}')),
        table.add_job(**payload('{"user": {"id": "42"}}')),
    )
    other = table.add_job(**payload('{"user": {"id": 43, "ok": true, "gone": null}, "a.b": ["x"]}'))

    assert found(table, "payload.user.id:42") == {number, string}
    assert found(table, 'payload.user.id:"42"') == {string}
    assert found(table, "payload.user.id:42,43") == {number, string, other}
    assert found(table, "-payload.user.id:42") == {other}
    assert found(table, "payload.user.ok:true") == {other}
    assert found(table, 'payload.user.ok:"true"') == set()
    assert found(table, "payload.user.gone:null") == {other}
    assert found(table, "payload.user.missing:null") == set()
    assert found(table, 'payload."a.b".0:x') == {other}


@pytest.mark.parametrize("written", ["Ada/50%_", r"Ada\/50%_", r"\u0041da/50%_"])
def test_a_string_is_found_with_any_json_escapes(table, written):
    job = table.add_job(**payload(f'{{"name": "{written}"}}'))
    table.add_job(**payload('{"name": "Ada/50xx"}'))

    assert found(table, "payload.name:Ada/50%_") == {job}


@pytest.mark.parametrize(
    "text",
    [
        r'{"name": "\u0000", "id": 1}',
        r'{"name": "\ud800", "id": 1}',
        r'{"name": "\udc00\ud800", "id": 1}',
        r'{"\u0000": 2, "id": 1}',
    ],
)
def test_a_payload_that_jsonb_rejects_does_not_match(table, text):
    table.add_job(**payload(text))
    job = table.add_job(**payload('{"id": 1}'))

    assert found(table, "payload.id:1") == {job}


@pytest.mark.parametrize(
    "text",
    [
        r'{"name": "\ud83d\ude00", "id": 1}',
        r'{"name": "\\u0000", "id": 1}',
        '{"name": "😀", "id": 1, "much": 1e400000}',
        "[1]",
        "null",
        '"text"',
    ],
)
def test_every_other_payload_can_match(table, text):
    job = table.add_job(**payload(text))

    assert found(table, "payload.id:1") == ({job} if '"id"' in text else set())


# Pages


def test_pages_start_with_the_newest_job(table):
    ids = [table.add_job() for _ in range(5)]

    first = table.run_plan(plan_list_jobs(ALL_JOBS, table.schemas, limit=2))
    second = table.run_plan(
        plan_list_jobs(ALL_JOBS, table.schemas, limit=2, before=first.jobs[-1].id)
    )
    last = table.run_plan(
        plan_list_jobs(ALL_JOBS, table.schemas, limit=2, before=second.jobs[-1].id)
    )

    assert [[job.id for job in page.jobs] for page in (first, second, last)] == [
        [ids[4], ids[3]],
        [ids[2], ids[1]],
        [ids[0]],
    ]
    assert [page.has_more for page in (first, second, last)] == [True, True, False]


def test_a_listed_job_has_its_state_times_and_error(table):
    queue = table.add_queue("billing")
    job = table.add_job(
        "charge",
        job_queue_id=queue,
        key="'k'",
        flags='\'{"slow": true, "eu": true}\'',
        priority="3",
        attempts="2",
        max_attempts="7",
        last_error="e'first line\\nsecond line'",
        created_at="'2026-08-01 12:00Z'",
        run_at="'2026-08-01 13:00Z'",
    )

    page = table.run_plan(plan_list_jobs(ALL_JOBS, table.schemas))

    (found,) = page.jobs
    assert (found.id, found.task_identifier, found.queue_name) == (job, "charge", "billing")
    assert (found.attempts, found.max_attempts, found.priority) == (2, 7, 3)
    assert (found.key, found.flags, found.error) == ("k", ("eu", "slow"), "first line")
    assert found.run_at == datetime(2026, 8, 1, 13, tzinfo=UTC)
    assert found.created_at == datetime(2026, 8, 1, 12, tzinfo=UTC)
    assert (found.locked_at, found.locked_by) == (None, None)
    assert page.now is not None
    assert abs(page.now - datetime.now(UTC)) < timedelta(minutes=1)


def test_newest_limits_the_search_to_the_newest_jobs(table):
    old, *new = [table.add_job() for _ in range(4)]

    page = table.run_plan(plan_list_jobs(ALL_JOBS, table.schemas, newest=3))
    count = table.run_plan(plan_count_jobs(ALL_JOBS, table.schemas, newest=3))

    assert {job.id for job in page.jobs} == {*new}
    assert (count.total, count.first_id, count.last_id) == (3, new[0], new[-1])
    assert table.run_plan(plan_count_jobs(ALL_JOBS, table.schemas, newest=9)).first_id == old


def test_ids_are_found_in_scans_of_limited_size(table):
    ids = [table.add_job_in_state("failed" if n % 2 else "ready") for n in range(6)]
    clauses = build_clauses(parse_filter("state:failed"), ())

    def scan(after: int) -> tuple[int | None, list[int]]:
        query = find_job_ids(after, ids[4], 2, clauses)
        end, matching = table.run_plan(with_limits(query, table.schemas))
        return end, matching

    assert scan(0) == (ids[1], [ids[1]])
    assert scan(ids[1]) == (ids[3], [ids[3]])
    assert scan(ids[3]) == (ids[4], [])
    assert scan(ids[4]) == (None, [])


def test_in_an_empty_table_nothing_is_found(table):
    page = table.run_plan(plan_list_jobs(ALL_JOBS, table.schemas))

    assert (page.jobs, page.has_more) == ([], False)
    assert table.run_plan(plan_count_jobs(ALL_JOBS, table.schemas)).total == 0


# Limits


def test_a_slow_search_times_out(table, sql):
    table.add_job()
    sql.run(
        "insert into :schema._private_jobs (task_id, last_error) "
        "select 1, repeat('ab', 5000) from generate_series(1, 2000)"
    )
    limits = QueryLimits(statement_timeout=timedelta(milliseconds=1))

    with pytest.raises(QueryTimeoutError, match=r"took longer than 0\.001 s. Narrow the filter"):
        table.run_plan(
            plan_list_jobs(parse_filter("error:*a*a*a*a*a*c"), table.schemas, limits=limits)
        )


def test_a_search_does_not_wait_for_a_lock(table, sql):
    table.add_job()
    other = sql.another()
    other.run("begin")
    other.run("lock table :schema._private_jobs")

    with pytest.raises(QueryTimeoutError, match="locked a table of the queue"):
        table.run_plan(plan_list_jobs(ALL_JOBS, table.schemas))
    other.close()


def test_the_limits_apply_only_to_the_search(table):
    table.run_plan(plan_list_jobs(ALL_JOBS, table.schemas))

    with table._db.transaction() as connection:
        (timeout,) = connection.raw.execute("show statement_timeout").fetchone()
    assert timeout == "0"


def test_a_search_without_the_schema_raises_schema_missing(table, sql):
    sql.run("drop schema :schema cascade")

    with pytest.raises(SchemaMissing):
        table.run_plan(plan_list_jobs(ALL_JOBS, table.schemas))
