"""What the seven SQL functions do at their edges, on our install and on the reference's alike."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from tests.support.rows import count_jobs
from tests.support.rows import fail_job as fail
from tests.support.rows import lock_job as lock
from tests.support.rows import read_names as names
from tests.support.sql import Sql

Row = dict[str, Any]

pytestmark = pytest.mark.single_version

MODES = ("replace", "preserve_run_at", "unsafe_dedupe")
OLD_TIME = datetime(2035, 1, 1, tzinfo=UTC)
NEW_TIME = datetime(2045, 1, 1, tzinfo=UTC)
JUST_NOW = timedelta(hours=3, minutes=59)
LONG_AGO = timedelta(hours=4, minutes=1)


@pytest.fixture
def sql(either_database) -> Iterator[Sql]:
    connection = Sql(either_database.dsn, either_database.schema)
    yield connection
    connection.close()


@pytest.fixture
def ear(sql) -> Iterator["Ear"]:
    listener = Ear(sql.another())
    yield listener
    listener.close()


class Ear:
    """Receives the notifications that workers would receive."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql
        self._notes: list[psycopg.Notify] = []
        sql.connection.add_notify_handler(self._notes.append)
        sql.run('listen "jobs:insert"')
        sql.run('listen "test:end"')

    def payloads(self) -> list[str]:
        """Everything that was committed since the last look and before this one."""
        # Notifications arrive in the order of commits: after this one nothing older can come.
        self._sql.run("select pg_notify('test:end', '')")
        while all(note.channel != "test:end" for note in self._notes):
            self._sql.run("select 1")
        heard = [note.payload for note in self._notes if note.channel == "jobs:insert"]
        self._notes.clear()
        return heard

    def counts(self) -> list[int]:
        return [json.loads(payload)["count"] for payload in self.payloads()]

    def close(self) -> None:
        self._sql.close()


def rows(sql: Sql, statement: str, *args: Any) -> list[Row]:
    with sql.connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(sql.text(statement), args or None).fetchall()


def add_job(sql: Sql, identifier: str | None = "task", **options: Any) -> Row:
    casts = {"payload": "json", "flags": "text[]", "run_at": "timestamptz"}
    casts |= {"max_attempts": "int", "priority": "int"}
    names = ["identifier", *options]
    named = [f"{name} => ${n}::{casts.get(name, 'text')}" for n, name in enumerate(names, 1)]
    return rows(
        sql, f"select * from :schema.add_job({', '.join(named)})", identifier, *options.values()
    )[0]


def add_jobs(sql: Sql, specs: list[Row], preserve_run_at: bool | None = False) -> list[Row]:
    statement = """
      select * from :schema.add_jobs(
        array(select json_populate_recordset(cast(null as :schema.job_spec), $1::json)),
        $2::boolean
      )
    """
    return rows(sql, statement, json.dumps(specs, default=str), preserve_run_at)


def get(sql: Sql, job_id: int) -> Row:
    return rows(sql, "select * from :schema._private_jobs where id = $1", job_id)[0]


def make_older(sql: Sql, job_id: int) -> None:
    """Move updated_at away from now, so that a change of it shows."""
    sql.run(
        "update :schema._private_jobs set updated_at = now() - interval '1 day' where id = $1",
        job_id,
    )


def changes(before: Row, after: Row) -> set[str]:
    return {name for name in before if before[name] != after[name]}


def is_null_row(row: Row) -> bool:
    return all(value is None for value in row.values())


# add_jobs


@pytest.mark.feature("F58")
@pytest.mark.parametrize("specs", ["null", "'{}'"])
def test_no_specs_make_no_jobs_but_an_empty_message(sql, ear, specs):
    made = sql.run(f"select * from :schema.add_jobs(cast({specs} as :schema.job_spec[]))")

    assert made == []
    assert ear.payloads() == [""]


def test_the_same_key_twice_in_one_call_is_21000(sql):
    with pytest.raises(psycopg.errors.CardinalityViolation):
        add_jobs(sql, [{"identifier": "task", "job_key": "k"}] * 2)

    assert count_jobs(sql) == 0


def test_a_null_identifier_is_23502_of_the_tasks(sql):
    with pytest.raises(psycopg.errors.NotNullViolation) as caught:
        add_jobs(sql, [{"identifier": None}])

    assert (caught.value.diag.table_name, caught.value.diag.column_name) == (
        "_private_tasks",
        "identifier",
    )


TOO_MUCH = [
    ({"identifier": "x" * 129}, "tasks_identifier_check"),
    ({"queue_name": "x" * 129}, "job_queues_queue_name_check"),
    ({"job_key": ""}, "jobs_key_check"),
    ({"job_key": "x" * 513}, "jobs_key_check"),
    ({"max_attempts": 0}, "jobs_max_attempts_check"),
    ({"max_attempts": -1}, "jobs_max_attempts_check"),
]


@pytest.mark.parametrize(("field", "constraint"), TOO_MUCH)
@pytest.mark.parametrize("call", ["add_job", "add_jobs"])
def test_a_value_out_of_bounds_is_23514_of_its_constraint(sql, call, field, constraint):
    spec = {"identifier": "task"} | field

    with pytest.raises(psycopg.errors.CheckViolation) as caught:
        add_job(sql, **spec) if call == "add_job" else add_jobs(sql, [spec])

    assert caught.value.diag.constraint_name == constraint


def test_bounds_are_counted_in_characters(sql):
    longest = {"identifier": "ü" * 128, "queue_name": "ß" * 128, "job_key": "é" * 512}

    [job] = add_jobs(sql, [longest])

    assert job["key"] == "é" * 512
    assert names(sql, "tasks") == {"ü" * 128}
    assert names(sql, "job_queues") == {"ß" * 128}


def test_a_queue_may_have_the_empty_name(sql):
    [job] = add_jobs(sql, [{"identifier": "task", "queue_name": ""}])

    assert job["job_queue_id"] is not None
    assert names(sql, "job_queues") == {""}


@pytest.mark.feature("F29")
@pytest.mark.parametrize(("payload", "stored"), [("null::json", "{}"), ("'null'::json", "null")])
def test_a_json_null_is_kept_and_only_no_payload_becomes_an_object(sql, payload, stored):
    spec = f"cast(row('task', {payload}, null, null, null, null, null, null) as :schema.job_spec)"

    text = sql.value(f"select payload::text from :schema.add_jobs(array[{spec}])")

    assert text == stored


@pytest.mark.feature("F14", "F29")
def test_a_payload_is_kept_byte_for_byte(sql):
    odd = '{"b" : 1.00, "a":1e2,\n"a": "\\u00e9"}'

    assert sql.value("select (:schema.add_job('task', $1::json)).payload::text", odd) == odd


@pytest.mark.feature("F35")
@pytest.mark.parametrize(
    ("flags", "stored"),
    [(["a", "b", "a"], {"a": True, "b": True}), ([], None), (None, None)],
)
@pytest.mark.parametrize("call", ["add_job", "add_jobs", "unsafe_dedupe"])
def test_flags_collapse_into_an_object_of_true(sql, call, flags, stored):
    if call == "add_jobs":
        [job] = add_jobs(sql, [{"identifier": "task", "flags": flags}])
    elif call == "add_job":
        job = add_job(sql, flags=flags)
    else:
        job = add_job(sql, flags=flags, job_key="k", job_key_mode=call)

    assert job["flags"] == stored


def test_a_null_flag_is_22023(sql):
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        add_jobs(sql, [{"identifier": "task", "flags": ["a", None]}])


@pytest.mark.parametrize("preserve", [None, False, True])
def test_run_at_is_preserved_only_when_asked_and_null_does_not_ask(sql, preserve):
    add_job(sql, job_key="k", run_at=OLD_TIME)

    [job] = add_jobs(sql, [{"identifier": "task", "job_key": "k", "run_at": NEW_TIME}], preserve)

    assert job["run_at"] == (OLD_TIME if preserve else NEW_TIME)


def test_an_upsert_burns_one_id(sql):
    first = add_job(sql, job_key="k")

    add_job(sql, job_key="k")

    assert add_job(sql)["id"] == first["id"] + 2


def test_known_names_cost_no_number(sql):
    for mode in ("replace", "unsafe_dedupe", "replace"):
        add_job(sql, "first", queue_name="first", job_key="k", job_key_mode=mode)

    add_job(sql, "second", queue_name="second")

    assert sql.run("select id from :schema._private_tasks order by id") == [(1,), (2,)]
    assert sql.run("select id from :schema._private_job_queues order by id") == [(1,), (2,)]


@pytest.mark.feature("F29", "F31", "F32", "F33", "F34", "F35")
def test_arguments_that_are_left_out_get_the_defaults(sql):
    [job] = add_jobs(sql, [{"identifier": "task"}])

    assert job["run_at"] == job["created_at"] == job["updated_at"]
    given = ("payload", "max_attempts", "priority", "attempts", "revision")
    assert [job[name] for name in given] == [{}, 25, 0, 0, 0]
    empty = ("job_queue_id", "key", "flags", "last_error", "locked_at", "locked_by")
    assert {job[name] for name in empty} == {None}
    assert job["is_available"] is True


@pytest.mark.feature("F26", "F27", "F28", "F37")
def test_nine_parameters_stand_in_their_order(sql):
    [job] = rows(
        sql,
        "select * from :schema.add_job('task', '[1]', 'queue', $1, 3, 'key', 7, '{flag}', "
        "'preserve_run_at')",
        OLD_TIME,
    )

    given = ("payload", "run_at", "max_attempts", "key", "priority", "flags")
    assert [job[name] for name in given] == [[1], OLD_TIME, 3, "key", 7, {"flag": True}]
    assert rows(sql, "select queue_name, task_identifier from :schema.jobs") == [
        {"queue_name": "queue", "task_identifier": "task"}
    ]


@pytest.mark.feature("F39")
def test_a_job_of_a_transaction_that_rolls_back_does_not_exist(sql, ear):
    with sql.connection.transaction(force_rollback=True):
        add_job(sql)

    assert count_jobs(sql) == 0
    assert ear.payloads() == []


# add_job


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("argument", ["max_attempts", "priority"])
@pytest.mark.parametrize("value", [32768, -32769])
def test_a_value_beyond_smallint_is_22003(sql, mode, argument, value):
    with pytest.raises(psycopg.errors.NumericValueOutOfRange):
        add_job(sql, **{argument: value}, job_key="k", job_key_mode=mode)


@pytest.mark.feature("F36")
@pytest.mark.parametrize("mode", [*MODES, "nonsense", None])
def test_without_a_key_any_mode_makes_a_new_job(sql, mode):
    made = [add_job(sql, job_key_mode=mode)["id"] for _ in range(2)]

    assert len(set(made)) == count_jobs(sql) == 2


@pytest.mark.feature("F36")
@pytest.mark.parametrize("mode", ["nonsense", "", "REPLACE"])
def test_an_unknown_mode_with_a_key_is_gwbkm_and_names_the_modes(sql, mode):
    with pytest.raises(psycopg.Error) as caught:
        add_job(sql, job_key="k", job_key_mode=mode)

    assert caught.value.sqlstate == "GWBKM"
    assert all(known in str(caught.value) for known in MODES)


def test_a_null_mode_means_replace(sql):
    add_job(sql, job_key="k", run_at=OLD_TIME)

    job = add_job(sql, job_key="k", run_at=NEW_TIME, job_key_mode=None)

    assert (job["revision"], job["run_at"]) == (1, NEW_TIME)


def test_unsafe_dedupe_makes_task_and_queue_even_for_a_job_it_leaves_alone(sql):
    add_job(sql, "old", job_key="k")

    add_job(sql, "new", queue_name="new", job_key="k", job_key_mode="unsafe_dedupe")

    assert names(sql, "tasks") == {"old", "new"}
    assert names(sql, "job_queues") == {"new"}


@pytest.mark.feature("F66")
def test_two_keyed_adds_in_one_transaction_leave_the_second(sql, ear):
    with sql.connection.transaction():
        add_job(sql, payload='{"n": 1}', job_key="k")
        add_job(sql, payload='{"n": 2}', job_key="k")

    assert rows(sql, "select payload, revision from :schema._private_jobs") == [
        {"payload": {"n": 2}, "revision": 1}
    ]
    assert ear.counts() == [1, 1]


# The table of keys: what there is, and what an add makes of it.


def absent(sql: Sql) -> None:
    """No job has the key."""


def waiting(sql: Sql) -> Row:
    return get(sql, _existing(sql))


def failed(sql: Sql) -> Row:
    job_id = _existing(sql)
    fail(sql, job_id, attempts=2)
    return get(sql, job_id)


def permanently_failed(sql: Sql) -> Row:
    job_id = _existing(sql)
    fail(sql, job_id, attempts=5)
    return get(sql, job_id)


def locked(sql: Sql) -> Row:
    job_id = _existing(sql)
    lock(sql, job_id)
    return get(sql, job_id)


def locked_long_ago(sql: Sql) -> Row:
    job_id = _existing(sql)
    lock(sql, job_id, age=LONG_AGO)
    return get(sql, job_id)


def _existing(sql: Sql) -> int:
    job = add_job(
        sql,
        "old",
        payload='{"old": 1}',
        queue_name="old",
        run_at=OLD_TIME,
        max_attempts=5,
        priority=3,
        flags=["old"],
        job_key="k",
    )
    make_older(sql, job["id"])
    job_id: int = job["id"]
    return job_id


def inserted(sql: Sql, old: Row | None, job: Row) -> None:
    assert is_new(sql, job)
    assert count_jobs(sql) == 1


def overwritten(sql: Sql, old: Row, job: Row) -> None:
    assert is_overwritten(sql, old, job)
    assert job["run_at"] == NEW_TIME


def overwritten_but_run_at(sql: Sql, old: Row, job: Row) -> None:
    assert is_overwritten(sql, old, job)
    assert job["run_at"] == OLD_TIME


def revised(sql: Sql, old: Row, job: Row) -> None:
    assert changes(old, job) == {"revision", "updated_at"}
    assert job["revision"] == old["revision"] + 1
    assert count_jobs(sql) == 1


def succeeded(sql: Sql, old: Row, job: Row) -> None:
    left = get(sql, old["id"])
    assert (left["key"], left["attempts"]) == (None, old["max_attempts"])
    assert changes(old, left) <= {"key", "attempts", "updated_at", "is_available"}
    assert left["updated_at"] > old["updated_at"]
    assert job["id"] != old["id"]
    assert is_new(sql, job)


def is_new(sql: Sql, job: Row) -> bool:
    return job["created_at"] == job["updated_at"] and _described(sql, job) == _NEW | {"revision": 0}


def is_overwritten(sql: Sql, old: Row, job: Row) -> bool:
    kept = ("id", "created_at")
    assert [job[name] for name in kept] == [old[name] for name in kept]
    assert job["updated_at"] > old["updated_at"]
    assert count_jobs(sql) == 1
    expected = _NEW | {"revision": old["revision"] + 1, "run_at": job["run_at"]}
    return _described(sql, job) == expected


_NEW = {
    "task": "new",
    "job_queue_id": None,
    "payload": {"new": 1},
    "run_at": NEW_TIME,
    "max_attempts": 25,
    "priority": 0,
    "flags": None,
    "key": "k",
    "attempts": 0,
    "last_error": None,
    "locked_at": None,
    "locked_by": None,
}


def _described(sql: Sql, job: Row) -> Row:
    """Return the fields of _NEW; the stored row must equal the one that the call returned."""
    assert job == get(sql, job["id"])
    task = sql.value("select identifier from :schema._private_tasks where id = $1", job["task_id"])
    return {name: job.get(name) for name in (*_NEW, "revision")} | {"task": task}


Outcome = Callable[[Sql, Any, Row], None]
TABLE: list[tuple[Callable[[Sql], Row | None], Outcome, Outcome, Outcome]] = [
    (absent, inserted, inserted, inserted),
    (waiting, overwritten, overwritten_but_run_at, revised),
    (failed, overwritten, overwritten, revised),
    (permanently_failed, succeeded, succeeded, revised),
    (locked, succeeded, succeeded, revised),
    (locked_long_ago, succeeded, succeeded, revised),
]
CELLS = [
    pytest.param(existing, mode, outcome, id=f"{existing.__name__}-{mode}-{outcome.__name__}")
    for existing, *outcomes in TABLE
    for mode, outcome in zip(MODES, outcomes, strict=True)
]


@pytest.mark.feature("F64", "F65", "F67", "F68", "F69", "F70", "F72", "F73", "F75", "F76", "F77")
@pytest.mark.parametrize(("existing", "mode", "outcome"), CELLS)
def test_a_keyed_add_meets_an_existing_job(sql, existing, mode, outcome):
    old = existing(sql)

    job = add_job(sql, "new", payload='{"new": 1}', run_at=NEW_TIME, job_key="k", job_key_mode=mode)

    outcome(sql, old, job)


BATCH_CELLS = [
    pytest.param(existing, mode == "preserve_run_at", outcome, id=f"{existing.__name__}-{mode}")
    for existing, *outcomes in TABLE
    for mode, outcome in zip(MODES[:2], outcomes[:2], strict=True)
]


@pytest.mark.parametrize(("existing", "preserve", "outcome"), BATCH_CELLS)
def test_a_keyed_batch_meets_existing_jobs(sql, existing, preserve, outcome):
    old = existing(sql)
    spec = {"identifier": "new", "payload": {"new": 1}, "run_at": NEW_TIME, "job_key": "k"}

    [job] = add_jobs(sql, [spec], preserve)

    outcome(sql, old, job)


@pytest.mark.feature("F78", "F79", "F80")
@pytest.mark.parametrize(
    ("old", "new", "mode", "stored"),
    [
        ("[1]", "[2, 3]", "replace", "[1, 2, 3]"),
        ("[1]", "[2, 3]", "preserve_run_at", "[1, 2, 3]"),
        ("[1]", "[2, 3]", "unsafe_dedupe", "[1]"),
        ("[1]", "{}", "replace", "{}"),
        ("{}", "[1]", "replace", "[1]"),
        ("[1]", None, "replace", "{}"),
        (None, "[1]", "replace", "[1]"),
        ("[]", "[]", "replace", "[]"),
        ('[{"b":1,"a":1e2,"a":1.00}]', "[ 2 ]", "replace", '[{"a": 1.00, "b": 1}, 2]'),
    ],
)
def test_only_two_arrays_are_joined_old_one_first(sql, old, new, mode, stored):
    add_job(sql, payload=old, job_key="k")

    job = add_job(sql, payload=new, job_key="k", job_key_mode=mode)

    assert sql.value("select payload::text from :schema._private_jobs") == stored
    assert job["revision"] == 1


def test_a_nul_in_an_array_is_stored_but_cannot_be_joined(sql):
    add_job(sql, payload='["\\u0000"]', job_key="k")

    with pytest.raises(psycopg.errors.UntranslatableCharacter):
        add_job(sql, payload="[1]", job_key="k")


@pytest.mark.parametrize("existing", [permanently_failed, locked])
def test_arrays_are_not_joined_with_a_job_that_lost_its_key(sql, existing):
    old = existing(sql)
    sql.run("update :schema._private_jobs set payload = '[1]' where id = $1", old["id"])

    job = add_job(sql, payload="[2]", job_key="k")

    assert job["payload"] == [2]


# The row of the table that needs two sessions: another session is about to lock the job.


class OpenFetch:
    """A transaction that has locked a job and not committed yet."""

    def __init__(self, fetcher: Sql, watcher: Sql, old: Row) -> None:
        self.old = old
        self._fetcher = fetcher
        self._watcher = watcher
        fetcher.run("begin")
        lock(fetcher, old["id"])

    def commit_during(self, sql: Sql, action: Callable[[], Any]) -> Any:
        """What the action gives, which this transaction holds up until it commits."""
        commit = threading.Thread(target=self._commit_once_waited_for, args=(sql,))
        commit.start()
        try:
            return action()
        finally:
            commit.join()

    def _commit_once_waited_for(self, sql: Sql) -> None:
        wait_until_blocked(self._watcher, sql.connection.info.backend_pid)
        self._fetcher.run("commit")


def wait_until_blocked(watcher: Sql, pid: int) -> None:
    state = "select wait_event_type = 'Lock' from pg_stat_activity where pid = $1"
    while not watcher.value(state, pid):
        time.sleep(0.005)


@pytest.fixture
def open_fetch(sql) -> Iterator[OpenFetch]:
    fetcher, watcher = sql.another(), sql.another()
    yield OpenFetch(fetcher, watcher, waiting(sql))
    fetcher.close()
    watcher.close()


def keyed_add(sql: Sql, mode: str) -> Row:
    return add_job(
        sql, "new", payload='{"new": 1}', run_at=NEW_TIME, job_key="k", job_key_mode=mode
    )


@pytest.mark.feature("F86")
@pytest.mark.parametrize("mode", MODES[:2])
def test_an_add_that_meets_an_uncommitted_lock_is_lost(sql, open_fetch, ear, mode):
    job = open_fetch.commit_during(sql, lambda: keyed_add(sql, mode))

    assert is_null_row(job)
    left = get(sql, open_fetch.old["id"])
    assert (left["key"], left["payload"], left["locked_by"]) == ("k", {"old": 1}, "pool")
    assert count_jobs(sql) == 1
    assert ear.counts() == [1]


@pytest.mark.feature("F86")
def test_a_batch_leaves_out_the_row_that_it_lost(sql, open_fetch, ear):
    specs = [{"identifier": "new", "job_key": key} for key in ("before", "k", "after")]

    made = open_fetch.commit_during(sql, lambda: add_jobs(sql, specs))

    assert {job["key"] for job in made} == {"before", "after"}
    assert ear.counts() == [3]


def test_unsafe_dedupe_waits_for_an_uncommitted_lock_then_revises(sql, open_fetch):
    job = open_fetch.commit_during(sql, lambda: keyed_add(sql, "unsafe_dedupe"))

    old = open_fetch.old
    assert (job["id"], job["revision"], job["locked_by"]) == (old["id"], 1, "pool")
    assert job["payload"] == {"old": 1}


@pytest.mark.feature("F86")
@pytest.mark.parametrize("mode", MODES[:2])
def test_the_next_call_of_the_same_transaction_finds_the_lock(sql, open_fetch, mode):
    with sql.connection.transaction():
        lost = open_fetch.commit_during(sql, lambda: keyed_add(sql, mode))
        job = keyed_add(sql, mode)

    assert is_null_row(lost)
    succeeded(sql, open_fetch.old | _lock_of(sql, open_fetch.old), job)


def _lock_of(sql: Sql, old: Row) -> Row:
    now = get(sql, old["id"])
    return {name: now[name] for name in ("locked_at", "locked_by", "is_available")}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_stricter_isolation_turns_the_lost_add_into_40001(sql, open_fetch, level, mode):
    sql.run(f"begin isolation level {level}")
    with pytest.raises(psycopg.errors.SerializationFailure):
        open_fetch.commit_during(sql, lambda: keyed_add(sql, mode))
    sql.run("rollback")

    assert count_jobs(sql) == 1


# remove_job


def remove_job(sql: Sql, key: str | None) -> Row:
    return rows(sql, "select * from :schema.remove_job($1::text)", key)[0]


@pytest.mark.feature("F82")
@pytest.mark.parametrize("existing", [waiting, failed, permanently_failed, locked_long_ago])
def test_remove_job_deletes_jobs_that_no_live_worker_holds(sql, ear, existing):
    old = existing(sql)
    ear.payloads()

    removed = remove_job(sql, "k")

    assert removed == old
    assert count_jobs(sql) == 0
    assert ear.counts() == [-1]


def test_remove_job_of_a_stale_lock_leaves_the_lock_of_the_queue(sql):
    locked_long_ago(sql)

    remove_job(sql, "k")

    assert sql.run("select queue_name, locked_by from :schema._private_job_queues") == [
        ("old", "pool")
    ]


@pytest.mark.feature("F84")
def test_remove_job_of_a_running_job_takes_its_key_and_its_attempts(sql, ear):
    old = get(sql, _existing(sql))
    lock(sql, old["id"], age=JUST_NOW)
    ear.payloads()

    removed = remove_job(sql, "k")

    assert removed == get(sql, old["id"])
    assert (removed["key"], removed["attempts"], removed["locked_by"]) == (None, 5, "pool")
    assert removed["updated_at"] > old["updated_at"]
    assert ear.payloads() == []


@pytest.mark.feature("F83")
@pytest.mark.parametrize("key", ["unknown", None])
def test_remove_job_of_nothing_is_a_null_row_and_no_message(sql, ear, key):
    assert is_null_row(remove_job(sql, key))
    assert ear.payloads() == []


# complete_jobs, permanently_fail_jobs, reschedule_jobs: what they share


def complete_jobs(sql: Sql, ids: list[int]) -> list[Row]:
    return rows(sql, "select * from :schema.complete_jobs($1)", ids)


def permanently_fail_jobs(sql: Sql, ids: list[int]) -> list[Row]:
    return rows(sql, "select * from :schema.permanently_fail_jobs($1)", ids)


def reschedule_jobs(sql: Sql, ids: list[int], **options: Any) -> list[Row]:
    named = [f", {name} => ${n}" for n, name in enumerate(options, 2)]
    statement = f"select * from :schema.reschedule_jobs($1{''.join(named)})"
    return rows(sql, statement, ids, *options.values())


ADMIN = [complete_jobs, permanently_fail_jobs, reschedule_jobs]


@pytest.mark.feature("F228", "F229", "F230", "F232")
@pytest.mark.parametrize("function", ADMIN)
@pytest.mark.parametrize("existing", [waiting, failed, permanently_failed, locked_long_ago])
def test_admin_functions_change_jobs_that_no_live_worker_holds(sql, ear, function, existing):
    old = existing(sql)
    ear.payloads()

    touched = function(sql, [old["id"], 999_999])

    assert [job["id"] for job in touched] == [old["id"]]
    assert ear.payloads() == []


@pytest.mark.feature("F232")
@pytest.mark.parametrize("function", ADMIN)
def test_admin_functions_leave_a_running_job_alone(sql, function):
    job_id = _existing(sql)
    lock(sql, job_id, age=JUST_NOW)
    old = get(sql, job_id)

    assert function(sql, [job_id]) == []
    assert get(sql, job_id) == old


@pytest.mark.parametrize("function", ADMIN)
def test_admin_functions_leave_the_lock_of_the_queue(sql, function):
    old = locked_long_ago(sql)

    function(sql, [old["id"]])

    assert sql.value("select locked_by from :schema._private_job_queues") == "pool"


@pytest.mark.parametrize("function", ADMIN)
@pytest.mark.parametrize("ids", [[], None])
def test_admin_functions_of_no_ids_do_nothing(sql, function, ids):
    waiting(sql)

    assert rows(sql, f"select * from :schema.{function.__name__}($1::bigint[])", ids) == []
    assert count_jobs(sql) == 1


@pytest.mark.feature("F228")
def test_complete_jobs_deletes_jobs_and_returns_them(sql):
    old = failed(sql)

    assert complete_jobs(sql, [old["id"]]) == [old]
    assert count_jobs(sql) == 0


@pytest.mark.feature("F229")
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [("$1", "Manually marked as failed"), ("$1, null", "Manually marked as failed")]
    + [("$1, 'why'", "why"), ("$1, ''", "")],
)
def test_permanently_fail_jobs_spends_all_attempts_for_a_reason(sql, arguments, reason):
    old = failed(sql)

    [job] = rows(sql, f"select * from :schema.permanently_fail_jobs({arguments})", [old["id"]])

    assert changes(old, job) == {"last_error", "attempts", "updated_at", "is_available"}
    assert (job["last_error"], job["attempts"]) == (reason, 5)


def test_permanently_fail_jobs_keeps_a_stale_lock(sql):
    old = locked_long_ago(sql)

    [job] = permanently_fail_jobs(sql, [old["id"]])

    assert (job["locked_at"], job["locked_by"]) == (old["locked_at"], "pool")


@pytest.mark.feature("F230")
@pytest.mark.parametrize(
    "given",
    [{}, {"run_at": NEW_TIME}, {"priority": 0}, {"priority": -7}, {"attempts": 0}, {"attempts": 1}]
    + [{"max_attempts": 9}, {"run_at": NEW_TIME, "priority": 0, "attempts": 0, "max_attempts": 1}],
)
@pytest.mark.parametrize("existing", [failed, locked_long_ago])
def test_reschedule_jobs_changes_only_given_arguments_and_zero_counts_as_given(
    sql, existing, given
):
    old = existing(sql)

    [job] = reschedule_jobs(sql, [old["id"]], **given)

    assert {name: job[name] for name in given} == given
    assert changes(old, job) <= {*given, "updated_at", "is_available"}
    assert job["updated_at"] > old["updated_at"]


@pytest.mark.feature("F231")
@pytest.mark.parametrize("given", [{"attempts": 0}, {"max_attempts": 6}])
def test_reschedule_jobs_revives_permanently_failed_jobs(sql, given):
    old = permanently_failed(sql)

    [job] = reschedule_jobs(sql, [old["id"]], **given)

    assert (old["is_available"], job["is_available"]) == (False, True)
    assert job["last_error"] == "boom"


@pytest.mark.parametrize("argument", ["priority", "attempts", "max_attempts"])
def test_reschedule_jobs_with_a_value_beyond_smallint_is_22003(sql, argument):
    old = waiting(sql)

    with pytest.raises(psycopg.errors.NumericValueOutOfRange):
        reschedule_jobs(sql, [old["id"]], **{argument: 32768})


# force_unlock_workers


@pytest.mark.parametrize("age", [timedelta(0), LONG_AGO])
def test_force_unlock_workers_frees_jobs_and_queues_and_nothing_else(sql, ear, age):
    job_id = _existing(sql)
    lock(sql, job_id, age=age)
    old = get(sql, job_id)
    ear.payloads()

    sql.run("select :schema.force_unlock_workers(array['pool', 'unknown'])")

    freed = get(sql, job_id)
    assert changes(old, freed) == {"locked_at", "locked_by", "is_available"}
    assert (freed["locked_at"], freed["locked_by"], freed["attempts"]) == (None, None, 1)
    assert sql.run("select locked_at, locked_by from :schema._private_job_queues") == [(None, None)]
    assert ear.payloads() == []


def test_force_unlock_workers_keeps_the_locks_of_other_workers(sql):
    old = locked(sql)

    sql.run("select :schema.force_unlock_workers(array['POOL', 'pool2', ''])")

    assert get(sql, old["id"]) == old
    assert sql.value("select locked_by from :schema._private_job_queues") == "pool"


# Notifications


def test_a_message_counts_the_specs_also_of_the_future_and_of_known_keys(sql, ear):
    add_job(sql, job_key="k")
    later = {"identifier": "task", "run_at": NEW_TIME}

    add_jobs(sql, [later, later, {"identifier": "task", "job_key": "k"}])

    assert ear.counts() == [1, 3]


def test_a_message_holds_a_random_number_that_keeps_equal_ones_apart(sql, ear):
    with sql.connection.transaction():
        add_job(sql)
        add_job(sql)

    first, second = (json.loads(payload) for payload in ear.payloads())
    assert first.keys() == second.keys() == {"r", "count"}
    assert 0 <= first["r"] < 1
    assert first["r"] != second["r"]


@pytest.mark.parametrize(
    ("existing", "counts"), [(absent, [1]), (waiting, []), (locked, []), (permanently_failed, [])]
)
def test_unsafe_dedupe_notifies_only_about_a_new_job(sql, ear, existing, counts):
    existing(sql)
    ear.payloads()

    keyed_add(sql, "unsafe_dedupe")

    assert ear.counts() == counts
