"""Scenes: what is in the tables before the sessions begin."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from graphile_worker import Job
from tests.support.jobs import make_job

KEY = "k"

# Pools a and b act in sessions; in some scenes a was taken for dead, and acts all the same.
A, B = "a", "b"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One job: free, unless a pool holds it."""

    id: int = 1
    queue: int | None = None
    key: str | None = None
    attempts: int = 0
    max_attempts: int = 3
    held_by: str | None = None
    # More than four hours ago, so that anybody may unlock it.
    is_stale: bool = False
    # How often it was running when its pool died.
    recoveries: int = 0

    def as_known_to_holder(self) -> Job:
        """What a pool that holds it, or held it once, knows of it."""
        return make_job(
            id=self.id,
            key=self.key,
            attempts=max(self.attempts, 1),
            max_attempts=self.max_attempts,
            locked_by=self.held_by,
        )


@dataclass(frozen=True)
class Scene:
    name: str
    # In the order in which they lie in the table.
    jobs: tuple[Row, ...]
    # Pool a was not seen for longer than its lease, and had started these.
    is_a_dead: bool = False
    started: tuple[int, ...] = ()
    # Enough to show that a pool which holds nothing of it changes nothing.
    is_for_strangers: bool = False

    @property
    def free(self) -> list[Row]:
        return [row for row in self.jobs if not row.held_by and row.attempts < row.max_attempts]

    @property
    def held(self) -> list[Row]:
        return [row for row in self.jobs if row.held_by]

    @property
    def is_stale(self) -> bool:
        return any(row.is_stale for row in self.jobs)

    @property
    def is_keyed(self) -> bool:
        return any(row.key for row in self.jobs)

    @property
    def to_end(self) -> list[Row]:
        """The jobs that a pool ends: those that are held, or that it only believes to hold."""
        return sorted(self.held or self.jobs, key=lambda row: row.id)

    @property
    def queues(self) -> list[int]:
        """In the order in which they lie in the table, too."""
        return list(dict.fromkeys(row.queue for row in self.jobs if row.queue is not None))

    @cached_property
    def script(self) -> str:
        """Statements that set the scene, from any state; `:now` is the start of the ring."""
        return ";\n".join(_script(self))


def _script(scene: Scene) -> Iterable[str]:
    yield "delete from :schema._private_jobs"
    yield "delete from :schema._private_job_queues"
    yield "delete from :ext_schema.pools"
    yield "delete from :ext_schema.recoveries"
    for queue in scene.queues:
        holder = next((row for row in scene.held if row.queue == queue), None)
        yield (
            "insert into :schema._private_job_queues (id, queue_name, locked_at, locked_by) "
            f"overriding system value values ({queue}, 'q{queue}', {_lock(holder)})"
        )
    for row in scene.jobs:
        yield (
            "insert into :schema._private_jobs (id, task_id, job_queue_id, key, attempts, "
            "max_attempts, run_at, created_at, updated_at, locked_at, locked_by) "
            f"overriding system value select {row.id}, tasks.id, {_literal(row.queue)}, "
            f"{_literal(row.key)}, {row.attempts}, {row.max_attempts}, "
            ":now - interval '9 hours', :now - interval '9 hours', :now - interval '9 hours', "
            f"{_lock(row)} from :schema._private_tasks as tasks where tasks.identifier = 'task'"
        )
        if row.recoveries:
            yield f"insert into :ext_schema.recoveries values ({row.id}, {row.recoveries})"
    seen = ":now - interval '1 hour'" if scene.is_a_dead else ":now"
    started = f"'{{{','.join(map(str, scene.started))}}}'"
    for pool, seen_at, jobs in ((A, seen, started), (B, ":now", "'{}'")):
        yield (
            "insert into :ext_schema.pools (id, seen_at, lease, started_jobs, details) "
            f"values ('{pool}', {seen_at}, interval '30 seconds', {jobs}, '{{}}')"
        )


def _lock(row: Row | None) -> str:
    if row is None or row.held_by is None:
        return "null, null"
    since = "5 hours" if row.is_stale else "1 minute"
    return f":now - interval '{since}', '{row.held_by}'"


def _literal(value: object) -> str:
    return "null" if value is None else repr(value)


def _held(**given: object) -> Row:
    return Row(**{"held_by": A, "attempts": 1, **given})  # type: ignore[arg-type]


SCENES = (
    Scene("ready", (Row(),)),
    Scene("held", (_held(),)),
    Scene("queue free", (Row(queue=1),)),
    Scene("queue locked", (_held(queue=1),), is_for_strangers=True),
    Scene("keyed", (Row(key=KEY),)),
    Scene("keyed in a queue", (Row(key=KEY, queue=1),)),
    Scene("keyed and held", (_held(key=KEY),)),
    Scene("keyed, held, in a queue", (_held(key=KEY, queue=1),)),
    Scene("keyed and out of attempts", (Row(key=KEY, attempts=3),)),
    Scene("last attempt", (_held(attempts=3),)),
    Scene("last attempt of a keyed job", (_held(attempts=1, max_attempts=1, key=KEY),)),
    Scene("two of one queue", (Row(id=2, queue=1), Row(queue=1))),
    Scene(
        "two of one queue, one held",
        (Row(id=2, queue=1), _held(queue=1, key=KEY)),
        is_for_strangers=True,
    ),
    Scene("two held", (_held(id=2), _held())),
    Scene("two held in two queues", (_held(id=2, queue=2), _held(queue=1))),
    Scene("dead, started", (_held(queue=1, key=KEY),), True, (1,), is_for_strangers=True),
    Scene("dead, not started", (_held(queue=1, key=KEY),), True),
    Scene("dead, one of two queues started", (_held(id=2, queue=2), _held(queue=1)), True, (2,)),
    Scene("dead, another of the queue waits", (Row(id=2, queue=1), _held(queue=1)), True, (1,)),
    Scene("dead at the last attempt, started", (_held(attempts=3, key=KEY),), True, (1,)),
    Scene("dead at the last attempt, not started", (_held(attempts=3, key=KEY),), True),
    Scene("dead at the last recovery", (_held(recoveries=2),), True, (1,)),
    Scene("dead and stale", (_held(is_stale=True, queue=1, key=KEY),), True, (1,)),
    Scene("stale", (_held(is_stale=True, queue=1, key=KEY),), is_for_strangers=True),
    Scene("two stale", (_held(id=2, is_stale=True, queue=2), _held(is_stale=True, queue=1))),
    Scene(
        "stale, another of the queue waits",
        (Row(id=2, queue=1), _held(is_stale=True, queue=1, key=KEY)),
    ),
)
