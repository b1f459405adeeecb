"""The ten statements that move locks, as workers, sweepers and producers send them."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from graphile_worker import JobKeyMode, JobSpec
from graphile_worker._db.sync import SyncPsycopgConnection
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.add import plan_add_job
from graphile_worker._sql.queries import claim, jobs, workers
from graphile_worker._sql.query import Plan, Query
from tests.chaos.interleavings.scenes import KEY, A, B, Scene

Ids = tuple[int, ...]

MAX_RECOVERIES = 3


@dataclass(frozen=True)
class Part:
    """Who acts, in what scene; `again` if it is the second try of the same write."""

    scene: Scene
    pool: str
    tasks: dict[int, str]
    schemas: Schemas
    number: int = 1
    again: bool = False

    @property
    def ending(self) -> Ids:
        return tuple(row.id for row in self.scene.to_end)

    @property
    def ending_queues(self) -> list[int]:
        queues = (row.queue for row in self.scene.to_end)
        return list(dict.fromkeys(queue for queue in queues if queue is not None))


@dataclass(frozen=True)
class Answer:
    """The result of a statement: jobs that it claimed, ended or released, and other values."""

    taken: Ids = ()
    ended: Ids = ()
    # Their attempt was given back.
    refunded: Ids = ()
    # Taken from a dead pool that had started them.
    recovered: Ids = ()
    # Deleted, or without key and attempts, because a client removed it; or only without those.
    removed: Ids = ()
    given_up: Ids = ()
    said: object = None


# The result of a recovery while another one is in progress.
NOT_ITS_TURN = Answer(said="another rescuer is at work")

Perform = Callable[[SyncPsycopgConnection, Part], Answer]


@dataclass(frozen=True)
class Action:
    """One statement, or one of the ways to call it."""

    name: str
    perform: Perform
    # Does it matter which pool sends it?
    is_of_pool: bool = False
    # Does it find its jobs by their ids, and not by who holds them?
    is_by_id: bool = False
    takes: bool = False
    ends: bool = False
    # It makes a held job give up its key, for ever.
    supersedes: bool = False
    # It releases jobs of other pools, and skips rows that are locked; the next recovery takes them.
    sweeps: bool = False
    # It knows a dead pool, or a lock of more than four hours, from others.
    knows_death: bool = False
    knows_age: bool = False
    # Has it something to do there, or must it not have?
    concerns: Callable[[Scene], bool] = lambda scene: True


def _claim_one(connection: SyncPsycopgConnection, part: Part) -> Answer:
    # The ways of a worker, from the cheapest on.
    for way in (
        claim.claim_first_job,
        claim.claim_plain_jobs,
        claim.claim_soonest_jobs,
        claim.claim_jobs,
    ):
        taken = connection.run(way(part.pool, part.tasks))
        if taken:
            return Answer(taken=_ids(taken))
    return Answer()


def _claim_many(connection: SyncPsycopgConnection, part: Part) -> Answer:
    return Answer(taken=_ids(connection.run(claim.claim_jobs(part.pool, part.tasks, limit=10))))


def _ids(taken: list[claim.ClaimedJob]) -> Ids:
    return tuple(held.job.id for held in taken)


def _complete(connection: SyncPsycopgConnection, part: Part) -> Answer:
    query = claim.complete_claimed_jobs(
        part.pool, list(part.ending), part.ending_queues, is_retry=part.again
    )
    return Answer(ended=_sorted(connection.run(query)))


def _fail(connection: SyncPsycopgConnection, part: Part) -> Answer:
    failures = [
        claim.FailedAttempt(row.as_known_to_holder(), f"by {part.pool}")
        for row in part.scene.to_end
    ]
    query = claim.fail_claimed_jobs(part.pool, failures, part.ending_queues, is_retry=part.again)
    return Answer(ended=_sorted(connection.run(query)))


def _return(connection: SyncPsycopgConnection, part: Part) -> Answer:
    returns = [claim.ReleasedJob(row.as_known_to_holder()) for row in part.scene.to_end]
    query = claim.release_claimed_jobs(part.pool, returns, part.ending_queues, is_retry=part.again)
    returned = _sorted(connection.run(query))
    return Answer(ended=returned, refunded=returned)


def _sorted(ids: set[int]) -> Ids:
    return tuple(sorted(ids))


# A sweep gives up on a lock after a quarter of a second, which a busy machine may need for a step.
PATIENT = ("set local lock_timeout = 0", "set local idle_in_transaction_session_timeout = 0")


def _recover(connection: SyncPsycopgConnection, part: Part) -> Answer:
    """What a sweeper does in its transaction when it has found pool a silent."""
    is_free = connection.run(workers.begin_rescue())
    if not (connection.run(workers.try_lock_rescue()) and is_free):
        return NOT_ITS_TURN
    for setting in PATIENT:
        connection.raw.execute(setting.encode())
    found = connection.run(workers.recover_jobs([A], timedelta(0), MAX_RECOVERIES))
    connection.run(workers.delete_orphaned_recoveries())
    connection.run(workers.delete_dead_pools())
    return Answer(
        refunded=tuple(each.job.id for each in found if each.was_started is False),
        recovered=tuple(each.job.id for each in found if each.was_started is not False),
        said=tuple((each.job.id, each.crash_count, each.is_quarantined) for each in found),
    )


def _unlock(connection: SyncPsycopgConnection, part: Part) -> Answer:
    return Answer(said=connection.run(workers.unlock_stale_jobs(except_pool_id="sweeper")))


def _force_unlock(connection: SyncPsycopgConnection, part: Part) -> Answer:
    job_ids, queues = connection.run(jobs.force_unlock_workers([A, B]))
    return Answer(said=(tuple(sorted(job_ids)), queues))


def _remove(connection: SyncPsycopgConnection, part: Part) -> Answer:
    removed = connection.run(jobs.remove_job(KEY))
    return Answer(removed=() if removed is None else (removed.id,))


def _complete_by_hand(connection: SyncPsycopgConnection, part: Part) -> Answer:
    done = connection.run(jobs.complete_jobs([row.id for row in part.scene.jobs]))
    return Answer(removed=tuple(job.id for job in done))


def _fail_by_hand(connection: SyncPsycopgConnection, part: Part) -> Answer:
    query = jobs.permanently_fail_jobs([row.id for row in part.scene.jobs], "by hand")
    return Answer(given_up=tuple(job.id for job in connection.run(query)))


def _reschedule(connection: SyncPsycopgConnection, part: Part) -> Answer:
    query = jobs.reschedule_jobs(
        [row.id for row in part.scene.jobs],
        run_at=timedelta(hours=1),
        priority=None,
        attempts=None,
        max_attempts=None,
    )
    return Answer(said=tuple(job.id for job in connection.run(query)))


def _adding(mode: JobKeyMode) -> Perform:
    def add(connection: SyncPsycopgConnection, part: Part) -> Answer:
        queue = f"q{part.scene.queues[0]}" if part.scene.queues else None
        spec = JobSpec(
            "task",
            {"by": part.number},
            queue_name=queue,
            job_key=KEY,
            job_key_mode=mode,
            max_attempts=3,
        )
        job = follow(plan_add_job(spec, part.schemas, max_bytes=None), connection)
        return Answer(said=(job.id if job.id < 100 else "new", job.revision))

    return add


def follow(plan: Plan[Any], connection: SyncPsycopgConnection) -> Any:
    """Answer all that a plan asks; its result."""
    answer = None
    try:
        while True:
            query = plan.send(answer)
            assert isinstance(query, Query)
            answer = connection.run(query)
    except StopIteration as end:
        return end.value


def _is_keyed(scene: Scene) -> bool:
    return scene.is_keyed


# By the name of the statement; some have several ways.
STATEMENTS: dict[str, tuple[Action, ...]] = {
    "claim one": (Action("claim one", _claim_one, is_of_pool=True, takes=True),),
    "claim many": (Action("claim many", _claim_many, is_of_pool=True, takes=True),),
    "complete": (Action("complete", _complete, is_of_pool=True, is_by_id=True, ends=True),),
    "fail": (Action("fail", _fail, is_of_pool=True, is_by_id=True, ends=True),),
    "return": (Action("return", _return, is_of_pool=True, is_by_id=True, ends=True),),
    "recover": (
        Action(
            "recover",
            _recover,
            sweeps=True,
            knows_death=True,
            concerns=lambda scene: scene.is_a_dead,
        ),
    ),
    "unlock": (
        Action(
            "unlock", _unlock, sweeps=True, knows_age=True, concerns=lambda scene: scene.is_stale
        ),
    ),
    "add": tuple(
        Action(f"add, {mode}", _adding(mode), supersedes=True, concerns=_is_keyed)
        for mode in (JobKeyMode.REPLACE, JobKeyMode.PRESERVE_RUN_AT, JobKeyMode.UNSAFE_DEDUPE)
    ),
    "remove": (Action("remove", _remove, supersedes=True, knows_age=True, concerns=_is_keyed),),
    "force unlock": (
        Action("force unlock", _force_unlock, concerns=lambda scene: bool(scene.held)),
    ),
}


def _is_for_people(scene: Scene) -> bool:
    return bool(scene.free) or scene.is_stale


# What people do to jobs that no pool holds, or has held for more than four hours.
BY_HAND = (
    Action(
        "complete by hand",
        _complete_by_hand,
        is_by_id=True,
        knows_age=True,
        concerns=_is_for_people,
    ),
    Action("fail by hand", _fail_by_hand, is_by_id=True, knows_age=True, concerns=_is_for_people),
    Action("reschedule", _reschedule, is_by_id=True, knows_age=True, concerns=_is_for_people),
)
