"""Steps of the model ring: each is done on a real database and in the model, and then compared.

An example is one transaction, in which `now()` does not change. Time passes where all times in the
tables move back, so that the model knows each of them to the microsecond; and a rollback leaves
the database as it was.
"""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from graphile_worker import JobKeyMode, JobSpec, RecoveryOptions, sync
from graphile_worker._db.sync import SyncPsycopgConnection
from graphile_worker._sql.queries.claim import (
    ClaimedJob,
    FailedAttempt,
    ReleasedJob,
    check_ready_jobs,
    claim_first_job,
    claim_jobs,
    claim_jobs_around,
    claim_jobs_unindexed,
    claim_plain_jobs,
    claim_soonest_jobs,
    complete_claimed_jobs,
    fail_claimed_jobs,
    find_orphaned_claims,
    find_releasable_queues,
    get_task_ids,
    register_tasks,
    release_claimed_jobs,
    release_orphaned_claims,
)
from graphile_worker._sql.queries.workers import (
    heartbeat,
    record_start,
    recover_jobs,
    register_pool,
    unlock_stale_jobs,
)
from graphile_worker._sql.query import Query
from tests.chaos.model import SECOND, Claim, Model, Row, Spec
from tests.support.sql import Sql

LEASE = 10
# More would not be among the soonest jobs, where a fetch may take fewer than there are.
MOST_JOBS = 18
WAYS = ("as a worker", "first", "plain", "soonest", "around", "everywhere", "unindexed")
# Any position: so few jobs are all among the first ones.
AROUND = (0, datetime(2026, 1, 1, tzinfo=UTC))
TASKS = ("send", "resize")
TROUBLES = ("sweep", "sweep", "recover workers", "unlock stale", "force unlock", "return unknown")

CLEAN = """
truncate :schema._private_jobs, :schema._private_job_queues, :ext_schema.pools,
  :ext_schema.recoveries restart identity
"""

# All that there is, and then $1 seconds pass.
LOOK = """
with jobs as (
  update :schema._private_jobs
  set run_at = run_at - $1 * interval '1 second',
      created_at = created_at - $1 * interval '1 second',
      updated_at = updated_at - $1 * interval '1 second',
      locked_at = locked_at - $1 * interval '1 second'
), queues as (
  update :schema._private_job_queues
  set locked_at = locked_at - $1 * interval '1 second'
  where locked_at is not null
), pools as (
  update :ext_schema.pools
  set seen_at = seen_at - $1 * interval '1 second',
      swept_at = swept_at - $1 * interval '1 second'
)
select
  (
    select json_agg(json_build_object(
      'id', job.id,
      'task', task.identifier,
      'queue', queue.queue_name,
      'payload', job.payload,
      'priority', job.priority,
      'run_at', round(extract(epoch from job.run_at - now()) * 1000000)::bigint,
      'max_attempts', job.max_attempts,
      'key', job.key,
      'flags', job.flags,
      'created_at', round(extract(epoch from job.created_at - now()) * 1000000)::bigint,
      'updated_at', round(extract(epoch from job.updated_at - now()) * 1000000)::bigint,
      'attempts', job.attempts,
      'last_error', job.last_error,
      'locked_by', job.locked_by,
      'locked_at', round(extract(epoch from job.locked_at - now()) * 1000000)::bigint,
      'revision', job.revision,
      'is_available', job.is_available
    ))
    from :schema._private_jobs as job
    left join :schema._private_tasks as task on task.id = job.task_id
    left join :schema._private_job_queues as queue on queue.id = job.job_queue_id
  ),
  (
    select json_object_agg(queue.queue_name, json_build_array(
      queue.locked_by,
      round(extract(epoch from queue.locked_at - now()) * 1000000)::bigint,
      queue.is_available
    ))
    from :schema._private_job_queues as queue
  ),
  (
    select json_object_agg(pool.id, json_build_array(
      round(extract(epoch from pool.seen_at - now()) * 1000000)::bigint,
      pool.started_jobs,
      pool.swept_at is not null
    ))
    from :ext_schema.pools as pool
  ),
  (
    select json_object_agg(known.job_id, json_build_array(
      known.count, known.started_by, known.started_attempt
    ))
    from :ext_schema.recoveries as known
  )
"""

# Few of each, so that steps meet.
numbers = st.integers(0, 9)
delays = st.sampled_from([None, None, None, None, 0, 2, -3])
specs = st.builds(
    Spec,
    task=st.sampled_from([*TASKS, *TASKS, "without a worker"]),
    payload=st.sampled_from([None, {"a": [1]}, [1], [2, {"b": None}]]),
    queue=st.sampled_from([None, None, "q1", "q1", "q2"]),
    delay=delays,
    max_attempts=st.sampled_from([None, 1, 1, 2]),
    priority=st.sampled_from([None, None, -1, 3]),
    key=st.sampled_from([None, None, "k1", "k1", "k2"]),
    mode=st.sampled_from(["replace", "replace", "preserve_run_at", "unsafe_dedupe"]),
    flags=st.sampled_from([frozenset[str](), frozenset[str](), frozenset({"f", "g"})]),
)
batches = st.lists(specs, min_size=1, max_size=4)
slots = st.sampled_from(["A", "B"])
waits = st.sampled_from([0, 0, LEASE + 1, 5 * 3600])


Held = tuple[Claim, ClaimedJob]


class Steps(RuleBasedStateMachine):
    """Two pools, a client that adds and administers jobs, and a rescuer."""

    def __init__(self, on: "Place") -> None:
        super().__init__()
        self.client, self.conn, self.schemas = on.client, on.conn, on.client._schemas
        self.look = on.look
        self.conn.execute(on.clean)
        self.connection = SyncPsycopgConnection(self.conn, self.schemas)
        self.do(register_tasks(list(TASKS)))
        self.task_ids = self.do(get_task_ids(list(TASKS)))
        self.model = Model(lease=LEASE)
        self.generations = {"A": 0, "B": 0}
        # What each pool thinks that it holds, and all that ever was.
        self.held: dict[str, dict[int, tuple[Claim, ClaimedJob]]] = {}
        self.ended: list[Held] = []
        for slot in self.generations:
            self.go_on(slot)

    def teardown(self) -> None:
        self.conn.rollback()

    def do(self, query: Query[Any]) -> Any:
        return self.connection.run(query)

    def id_of(self, slot: str) -> str:
        return f"{slot}{self.generations[slot]}"

    def jobs_of(self, pool: str) -> dict[int, ClaimedJob]:
        return {job_id: held for job_id, (_, held) in self.held[pool].items()}

    # A step that cannot change anything is a step less for the others.

    @property
    def is_any_locked(self) -> bool:
        is_job = any(row.locked_by for row in self.model.jobs.values())
        return is_job or any(lock.locked_by for lock in self.model.queues.values())

    def go_on(self, slot: str) -> None:
        """Under a new id."""
        self.generations[slot] += 1
        pool = self.id_of(slot)
        self.held[pool] = {}
        self.do(register_pool(pool, timedelta(seconds=LEASE), {}))
        self.model.register(pool)

    def after_sweep(self) -> None:
        for slot in self.generations:
            if self.model.pools[self.id_of(slot)].is_swept:
                self.go_on(slot)

    # Adding, and looking after

    @initialize(many=batches)
    def begin(self, many: list[Spec]) -> None:
        self.add_jobs(many)

    @precondition(lambda self: len(self.model.jobs) < MOST_JOBS and len(self.model.ready()) < 6)
    @rule(many=batches)
    def add(self, many: list[Spec]) -> None:
        if len(many) > 1:
            self.add_jobs(many)
            return
        added = self.client.add_spec(_asked(many[0]), conn=self.conn)
        self.model.add(many, [added.id])

    def add_jobs(self, many: list[Spec]) -> None:
        keys: set[str] = set()
        wanted = []
        for spec in many:
            if spec.key not in keys:
                keys |= {spec.key} if spec.key else set()
                mode = "replace" if spec.mode == "unsafe_dedupe" else spec.mode
                wanted.append(spec._replace(mode=mode))
        added = self.client.add_jobs([_asked(spec) for spec in wanted], conn=self.conn)
        self.model.add(wanted, [job.id for job in added])

    @precondition(lambda self: self.model.jobs)
    @rule(
        act=st.sampled_from(["remove", "complete", "permanently fail", "reschedule", "reschedule"]),
        number=numbers,
        delay=delays,
        priority=st.sampled_from([None, 0, 2]),
        attempts=st.sampled_from([None, 0, 1]),
        max_attempts=st.sampled_from([None, 1, 3]),
    )
    def look_after(
        self, act: str, number: int, delay: int | None, priority: int | None, **given: int | None
    ) -> None:
        ids = [*list(self.model.jobs)[number::3], 1000]
        changes: Any = {"priority": priority, **given}
        if act == "remove":
            key = "k2" if number > 6 else "k1"
            self.client.remove_job(key, conn=self.conn)
            self.model.remove(key)
            return
        if act == "complete":
            changed = self.client.complete_jobs(ids, conn=self.conn)
            expected = self.model.complete(ids)
        elif act == "permanently fail":
            reason = "no" if number % 2 else None
            changed = self.client.permanently_fail_jobs(ids, reason, conn=self.conn)
            expected = self.model.permanently_fail(ids, reason)
        else:
            changed = self.client.reschedule_jobs(
                ids, run_at=_span(delay), conn=self.conn, **changes
            )
            expected = self.model.reschedule(ids, delay=delay, **changes)
        assert [job.id for job in changed] == expected

    # Taking jobs

    @precondition(lambda self: self.model.ready())
    @rule(
        slot=slots,
        limit=st.sampled_from([1, 2, 5, 5]),
        way=st.sampled_from(WAYS),
        tasks=st.sampled_from([TASKS, TASKS, TASKS, TASKS[:1]]),
        flags=st.sampled_from([None, None, None, ["g"]]),
        is_lost=st.sampled_from([False, False, False, True]),
    )
    def take(
        self,
        slot: str,
        limit: int,
        way: str,
        tasks: tuple[str, ...],
        flags: list[str] | None,
        is_lost: bool,
    ) -> None:
        pool = self.id_of(slot)
        claimable = self.model.claimable(tasks, flags or ())
        wanted = claimable[:limit]
        check = check_ready_jobs(self.find_task_ids(tasks), flags)
        assert self.do(check).may_be_ready == bool(claimable), (
            "the cheap check is exact in a small table"
        )
        is_plain = all(
            row.queue is None and row.task in tasks and not row.flags & set(flags or ())
            for row in self.model.ready()
        )
        taken = self.take_by(way, pool, tasks, skip_flags=flags, limit=limit)
        if taken and taken[0].is_all_ready:
            assert len(taken) == len(claimable), "another job was ready"

        ids = [each.job.id for each in taken]
        rows = [self.model.jobs[job_id] for job_id in ids]
        if way == "first":
            assert [row.place[:2] for row in rows] in self.find_first(wanted, is_plain=is_plain)
        elif way == "plain" and not is_plain:
            assert ids == [], "the plain way took what is not plain"
        elif is_plain and way in ("plain", "as a worker"):
            # Of those that stand in the same place it takes any, as the reference does.
            assert [row.place[:2] for row in rows] == [row.place[:2] for row in wanted]
            assert ids == [row.id for row in sorted(rows, key=lambda row: row.place)]
        else:
            assert ids == [row.id for row in wanted]
        claims = self.model.claim(pool, ids, is_lost=is_lost)
        for claim, held in zip(claims, taken, strict=True):
            held.claimed_at = claim.number
            assert (held.job.attempts, held.pool_id) == (claim.attempts, pool)
            if not is_lost:
                self.held[pool][claim.id] = (claim, held)

    def find_first(self, wanted: list[Row], *, is_plain: bool) -> list[list[tuple[int, int]]]:
        """Return the places that the first job may have: that of the first wanted one, or none."""
        first = min(row.place[:2] for row in self.model.jobs.values() if row.is_available)
        found = [row.place[:2] for row in wanted[:1]]
        if found != [first]:
            # Another job precedes it, which cannot be claimed.
            return [[]]
        return [found] if is_plain else [found, []]

    def find_task_ids(self, tasks: tuple[str, ...]) -> dict[int, str]:
        return {number: name for number, name in self.task_ids.items() if name in tasks}

    def take_by(
        self, way: str, pool: str, tasks: tuple[str, ...], **given: Any
    ) -> list[ClaimedJob]:
        known = self.find_task_ids(tasks)
        ways: dict[str, list[Callable[..., Query[list[ClaimedJob]]]]] = {
            "as a worker": [claim_plain_jobs, claim_soonest_jobs, claim_jobs],
            "first": [claim_first_job],
            "plain": [claim_plain_jobs],
            "soonest": [claim_soonest_jobs],
            "around": [partial(claim_jobs_around, since=AROUND)],
            "everywhere": [claim_jobs],
            "unindexed": [claim_jobs_unindexed],
        }
        answers = (self.do(each(pool, known, **given)) for each in ways[way])
        return next((taken for taken in answers if taken), [])

    @precondition(lambda self: self.model.claimable(TASKS, ()))
    @rule(slot=slots)
    def take_all(self, slot: str) -> None:
        """What most steps are about, so it is tried more often."""
        self.take(slot, 5, "as a worker", TASKS, None, False)

    # Letting go of them: each by the id that it was taken with, which may be gone

    def ending(self, number: int, count: int) -> list[Held]:
        """Draw jobs that one pool holds, or believes to hold, and take them from its list."""
        pools = [pool for pool, held in self.held.items() if held]
        pool = pools[number % len(pools)]
        chosen = list(self.held[pool].values())[number // 2 :][:count]
        return chosen or list(self.held[pool].values())[:count]

    def ended_by(
        self, chosen: list[Held], make: Callable[..., Query[set[int]]]
    ) -> Iterator[set[int]]:
        """Return the answer to an end, and to the same end again."""
        pool = chosen[0][0].pool
        queues = find_releasable_queues([held for _, held in chosen], self.jobs_of(pool))
        yield self.do(make(pool, queue_ids=queues))
        for claim, _ in chosen:
            self.held[pool].pop(claim.id)
        self.ended += chosen
        yield self.do(make(pool, queue_ids=queues, is_retry=True))

    def check_ending(
        self,
        chosen: list[Held],
        make: Callable[..., Query[set[int]]],
        expected: set[int],
    ) -> None:
        first, second = self.ended_by(chosen, make)
        assert (first, second) == (expected, set())

    @precondition(lambda self: any(self.held.values()))
    @rule(
        how=st.sampled_from(["finish", "fail", "fail", "give back", "give back"]),
        number=numbers,
        count=st.integers(1, 3),
        delay=st.sampled_from([None, None, 2]),
        give_up=st.sampled_from([False, False, True]),
        payload=st.sampled_from([None, None, [7]]),
    )
    def end(
        self,
        how: str,
        number: int,
        count: int,
        delay: int | None,
        give_up: bool,
        payload: list[int] | None,
    ) -> None:
        chosen = self.ending(number, count)
        match how:
            case "finish":
                self.finish(chosen)
            case "fail":
                self.fail(chosen, delay, give_up, payload)
            case _:
                self.give_back(chosen, delay)

    @precondition(lambda self: any(self.held.values()))
    @rule(number=numbers, how=st.sampled_from(["finish", "fail", "give back"]))
    def end_one(self, number: int, how: str) -> None:
        """What most steps are about, so it is tried more often."""
        self.end(how, number, 1, None, False, None)

    def finish(self, chosen: list[Held]) -> None:
        ids = [claim.id for claim, _ in chosen]
        make = partial(complete_claimed_jobs, job_ids=ids)
        self.check_ending(chosen, make, self.model.finish([claim for claim, _ in chosen]))

    def fail(
        self, chosen: list[Held], delay: int | None, give_up: bool, payload: list[int] | None
    ) -> None:
        text = None if payload is None else json.dumps(payload)
        failures = [
            FailedAttempt(held.job, "boom", _span(delay), give_up, text) for _, held in chosen
        ]
        expected = self.model.fail(
            [claim for claim, _ in chosen], "boom", delay=delay, give_up=give_up, payload=payload
        )
        self.check_ending(chosen, partial(fail_claimed_jobs, failures=failures), expected)

    def give_back(self, chosen: list[Held], delay: int | None) -> None:
        returns = [ReleasedJob(held.job, _span(delay)) for _, held in chosen]
        expected = self.model.give_back([claim for claim, _ in chosen], delay=delay)
        self.check_ending(chosen, partial(release_claimed_jobs, releases=returns), expected)

    @precondition(lambda self: self.ended)
    @rule(number=numbers)
    def end_again(self, number: int) -> None:
        """A write whose answer got lost is sent again, however much later."""
        claim, held = self.ended[-1 - number % len(self.ended)]
        row = self.model.jobs.get(claim.id)
        is_held = row is not None and row.locked_by == claim.pool
        if is_held and claim.id not in self.held[claim.pool]:
            # A lost fetch has taken it again. The fence is the pool's id, so that this would end
            # that claim: the scheduler ring is about such.
            return
        # Otherwise a fetch may have taken the queue whose answer has not come yet.
        others = self.jobs_of(claim.pool) if is_held else {}
        queues = find_releasable_queues([held], others)
        ended = self.do(complete_claimed_jobs(claim.pool, [claim.id], queues, is_retry=True))
        assert ended == self.model.finish([claim], again=True)

    # Pools that live, and those that do not

    @precondition(lambda self: any(self.held.values()))
    @rule(number=numbers, count=st.integers(0, 5), is_noted=st.sampled_from([False, False, True]))
    def say_what_has_begun(self, number: int, count: int, is_noted: bool) -> None:
        """With a heartbeat, or before the job begins."""
        chosen = self.ending(number, 5)
        pool = chosen[0][0].pool
        if is_noted:
            self.note_start(*chosen[0])
            return
        started = [claim.id for claim, _ in chosen][:count]
        heard = self.do(heartbeat([pool], started))
        assert bool(heard.server_times) == self.model.beat(pool, started)

    def note_start(self, claim: Claim, held: ClaimedJob) -> None:
        noted = self.do(record_start(claim.id, claim.pool, held.job.attempts))
        assert noted == self.model.note_start(claim)

    @precondition(lambda self: self.is_any_locked)
    @rule(
        what=st.sampled_from(TROUBLES),
        slot=slots,
        wait=waits,
        delay=st.sampled_from([0, 0, 4]),
        most=st.sampled_from([1, 2, 3]),
    )
    def take_locks(self, what: str, slot: str, wait: int, delay: int, most: int) -> None:
        """Unlock the jobs of a pool by force, perhaps after a while."""
        self.pass_time(wait)
        pool = self.id_of(slot)
        match what:
            case "sweep":
                self.sweep(delay, most)
            case "recover workers":
                self.recover_workers(pool, delay)
            case "unlock stale":
                known = list(self.held[pool].values())
                queues = [held.queue_id for _, held in known if held.queue_id is not None]
                jobs = list(self.held[pool])
                count = self.do(
                    unlock_stale_jobs(
                        except_pool_id=pool, except_job_ids=jobs, except_queue_ids=queues
                    )
                )
                assert count == self.model.unlock_stale(pool, [claim for claim, _ in known])
            case "force unlock":
                self.client.force_unlock_workers([pool], conn=self.conn)
                self.model.force_unlock([pool])
            case _:
                self.give_back_unknown()

    def sweep(self, delay: int, most: int) -> None:
        pools = list(self.model.pools)
        recovered = self.do(recover_jobs(pools, timedelta(seconds=delay), most))
        expected = self.model.recover(pools, delay=delay, most=most)
        assert [each.job.id for each in recovered] == expected
        self.after_sweep()

    def recover_workers(self, pool: str, delay: int) -> None:
        pools = [pool, "somebody"]
        span = timedelta(seconds=delay)
        recovered = self.client.recover_workers(pools, crash_retry_delay=span, conn=self.conn)
        most = RecoveryOptions().max_crashes
        expected = self.model.recover(pools, delay=delay, most=most, surely_dead=True)
        assert [job.id for job in recovered] == expected
        self.after_sweep()

    def give_back_unknown(self) -> None:
        """After a fetch whose answer got lost, if there was one."""
        rows = [row for row in self.model.jobs.values() if row.locked_by is not None]
        owners = [row.locked_by for row in rows if row.id not in self.held[row.locked_by or ""]]
        pool = owners[0] if owners and owners[0] else self.id_of("A")
        known = list(self.held[pool].values())
        queues = [held.queue_id for _, held in known if held.queue_id is not None]
        held = list(self.held[pool])
        found = self.do(find_orphaned_claims(pool, held, queues))
        returned = self.do(release_orphaned_claims(pool, found, held, queues))
        assert returned == self.model.give_back_unknown(pool, [claim for claim, _ in known])

    # Time

    @precondition(lambda self: self.model.jobs and not self.model.ready())
    @rule(seconds=st.sampled_from([3, 30]))
    def wait(self, seconds: int) -> None:
        self.pass_time(seconds)

    @invariant()
    def all_is_as_in_the_model(self) -> None:
        """And then a second passes, so that nothing happens at the time of anything else."""
        now = self.model.now
        jobs, queues, pools, recoveries = self.pass_time(1)
        assert _found(jobs or [], now) == {job.id: _expected(job) for job in _jobs(self.model)}
        locks = self.model.queues.items()
        assert {name: _later(lock, now) for name, lock in (queues or {}).items()} == {
            name: [lock.locked_by, lock.locked_at, lock.locked_by is None] for name, lock in locks
        }
        assert {name: [pool[0] + now, *pool[1:]] for name, pool in (pools or {}).items()} == {
            name: [pool.seen_at, pool.started, pool.is_swept]
            for name, pool in self.model.pools.items()
        }
        assert {int(job): found for job, found in (recoveries or {}).items()} == {
            job: [known.count, *(known.started or (None, None))]
            for job, known in self.model.recoveries.items()
        }

    def pass_time(self, seconds: int) -> Any:
        with psycopg.RawCursor(self.conn) as cursor:
            found = cursor.execute(self.look, (seconds,)).fetchone()
        self.model.now += seconds * SECOND
        return found


class Place:
    """A database for many examples, and one connection to it."""

    def __init__(self, sql: Sql) -> None:
        self.client = sync.Client(sql.dsn, schema=sql.schema)
        self.conn = psycopg.connect(sql.dsn, prepare_threshold=3)
        self.clean, self.look = sql.text(CLEAN), sql.text(LOOK)

    def close(self) -> None:
        self.conn.close()
        self.client.close()


def _asked(spec: Spec) -> JobSpec:
    return JobSpec(
        spec.task,
        spec.payload,
        queue_name=spec.queue,
        run_at=_span(spec.delay),
        max_attempts=spec.max_attempts,
        priority=spec.priority,
        job_key=spec.key,
        job_key_mode=None if spec.key is None else JobKeyMode(spec.mode),
        flags=sorted(spec.flags),
    )


def _span(delay: int | None) -> timedelta | None:
    return None if delay is None else timedelta(seconds=delay)


def _jobs(model: Model) -> list[Any]:
    return list(model.jobs.values())


def _expected(row: Any) -> dict[str, Any]:
    return {**vars(row), "is_available": row.is_available}


def _found(jobs: list[dict[str, Any]], now: int) -> dict[int, dict[str, Any]]:
    return {
        job["id"]: {**job, **_times(job, now), "flags": frozenset(job["flags"] or ())}
        for job in jobs
    }


def _times(job: dict[str, Any], now: int) -> dict[str, int | None]:
    names = ("run_at", "created_at", "updated_at", "locked_at")
    return {name: None if job[name] is None else job[name] + now for name in names}


def _later(lock: list[Any], now: int) -> list[Any]:
    holder, locked_at, is_available = lock
    return [holder, None if locked_at is None else locked_at + now, is_available]
