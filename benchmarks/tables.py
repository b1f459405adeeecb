"""The tables on which fetches are measured: a clean one of each kind, and what may lie beside."""

from collections.abc import Callable
from dataclasses import dataclass

import psycopg

from graphile_worker import lane

READY = 20_000
IDENTIFIERS = 200
FLAG = "forbidden"
LANES = 4
# A value for each lane, in their order.
BY = [by for _, by in sorted({lane("tenant", 0, of=LANES, by=by): by for by in range(40)}.items())]

TASKS = """
    insert into graphile_worker._private_tasks (identifier)
    select 'task_' || number from generate_series(0, %s) as number
"""
QUEUES = """
    insert into graphile_worker._private_job_queues (queue_name, locked_at, locked_by)
    select names.name,
           case when %(locked)s then now() end,
           case when %(locked)s then 'another worker' end
    from unnest(%(names)s::text[]) with ordinality as names (name, number)
    order by names.number
"""
# Tables differ in task, queue, priority, age, attempts and flag. The number of a row is its
# payload, and spreads rows over tasks and queues.
JOBS = """
    insert into graphile_worker._private_jobs
      (task_id, job_queue_id, payload, priority, run_at, attempts, flags)
    select (
             select id from graphile_worker._private_tasks
             where identifier = 'task_' || %(task)s
           ) + number %% %(tasks)s,
           case when %(queues)s > 0 then (
             select id from graphile_worker._private_job_queues
             where queue_name = %(queue)s
           ) + number %% greatest(%(queues)s, 1) end,
           json_build_object('id', number),
           %(priority)s,
           now() + %(due)s::interval,
           %(attempts)s,
           case when %(flag)s::text is not null then jsonb_build_object(%(flag)s::text, true) end
    from generate_series(0, %(count)s - 1) as number
"""


@dataclass(frozen=True, slots=True)
class Filler:
    """Fills a table; `scale` makes what lies beside the ready jobs smaller or larger."""

    connection: psycopg.Connection
    scale: float

    def queues(self, count: int, *, first: int = 0, locked: bool = False) -> None:
        self._queues([f"queue_{number}" for number in range(first, first + count)], locked)

    def lanes(self, tenants: int, *, first: int = 0, locked: bool = False) -> None:
        names = [
            lane("tenant", tenant, of=LANES, by=by)
            for tenant in range(first, first + tenants)
            for by in BY
        ]
        self._queues(names, locked)

    def _queues(self, names: list[str], locked: bool) -> None:
        self.connection.execute(QUEUES, {"names": names, "locked": locked})

    def jobs(
        self,
        count: int,
        *,
        task: int = 0,
        tasks: int = 1,
        queue: str = "queue_0",
        queues: int = 0,
        priority: int = 0,
        due: str = "0",
        attempts: int = 0,
        flag: str | None = None,
    ) -> None:
        given = {"count": count, "task": task, "tasks": tasks, "queue": queue, "queues": queues}
        more = {"priority": priority, "due": due, "attempts": attempts, "flag": flag}
        self.connection.execute(JOBS, {**given, **more})

    def many(self, count: int) -> int:
        return max(1, round(count * self.scale))


@dataclass(frozen=True, slots=True)
class Table:
    """What is in the table, and which clean one it is compared with."""

    name: str
    label: str
    kind: str
    fill: Callable[[Filler], None]
    tasks: int = 1
    """How many tasks the worker has."""
    forbidden_flags: tuple[str, ...] = ()
    """The flags of jobs that the worker must not claim."""


def ready(fill: Filler) -> None:
    fill.jobs(READY)


def foreign_task(fill: Filler) -> None:
    fill.jobs(fill.many(1_000_000), task=1, due="-1 hour")
    fill.jobs(READY)


def two_stuck_queues(fill: Filler) -> None:
    fill.queues(2, locked=True)
    fill.jobs(fill.many(100_000), queues=2, due="-1 hour")
    fill.jobs(READY)


def own_queues(fill: Filler) -> None:
    count = fill.many(100_000)
    fill.queues(count)
    fill.jobs(count, queues=count)


def clean_queues(fill: Filler) -> None:
    fill.queues(READY)
    fill.jobs(READY, queues=READY)


def future(fill: Filler) -> None:
    fill.jobs(fill.many(1_000_000), priority=-1, due="1 day")
    fill.jobs(READY)


def future_of_one_priority(fill: Filler) -> None:
    fill.jobs(fill.many(1_000_000), due="1 day")
    fill.jobs(READY)


def failed(fill: Filler) -> None:
    fill.jobs(fill.many(1_000_000), attempts=25, due="-1 hour")
    fill.jobs(READY)


def own_task(fill: Filler) -> None:
    fill.jobs(fill.many(1_000_000))


def idle_queues(fill: Filler) -> None:
    fill.queues(fill.many(100_000))
    fill.jobs(READY)


def stuck_queues(fill: Filler) -> None:
    stuck, free = fill.many(5_000), 1_000
    fill.queues(stuck, locked=True)
    fill.queues(free, first=stuck)
    fill.jobs(stuck, queues=stuck, priority=-1)
    fill.jobs(free, queue=f"queue_{stuck}", queues=free)


def forbidden_flag(fill: Filler) -> None:
    fill.jobs(fill.many(100_000), flag=FLAG, due="-1 hour")
    fill.jobs(READY)


def busy_tenant(fill: Filler) -> None:
    busy, free = 4, 3_996
    fill.queues(busy, locked=True)
    fill.queues(free, first=busy)
    fill.jobs(fill.many(90_000), queues=busy, due="-1 hour")
    fill.jobs(READY, queue=f"queue_{busy}", queues=free)


def busy_lanes(fill: Filler) -> None:
    fill.lanes(1, locked=True)
    fill.lanes(999, first=1)
    fill.jobs(fill.many(90_000), queue="tenant:0#1", queues=LANES, due="-1 hour")
    fill.jobs(READY, queue="tenant:1#1", queues=999 * LANES)


def many_lanes(fill: Filler) -> None:
    tenants = fill.many(25_000)
    fill.lanes(tenants)
    fill.jobs(tenants * LANES, queue="tenant:0#1", queues=tenants * LANES)


def identifiers(fill: Filler) -> None:
    fill.jobs(fill.many(IDENTIFIERS * 1_000), tasks=IDENTIFIERS)


CLEAN = {
    "free": Table("ready", "20,000 ready", "free", ready),
    "queued": Table("queued", "20,000 ready, each in its own queue", "queued", clean_queues),
}

TABLES = (
    Table("foreign", "1,000,000 of an unknown task + 20,000", "free", foreign_task),
    Table("stuck", "100,000 in 2 locked queues + 20,000", "free", two_stuck_queues),
    Table("own_queues", "100,000, each in its own queue", "queued", own_queues),
    Table("future", "1,000,000 scheduled at higher priority + 20,000", "free", future),
    Table(
        "future_of_one_priority",
        "1,000,000 scheduled at the same priority + 20,000",
        "free",
        future_of_one_priority,
    ),
    Table("failed", "1,000,000 permanently failed + 20,000", "free", failed),
    Table("own", "1,000,000 ready", "free", own_task),
    Table("idle_queues", "100,000 idle queues + 20,000", "free", idle_queues),
    Table(
        "stuck_queues",
        "5,000 locked queues first + 1,000 queued",
        "queued",
        stuck_queues,
    ),
    Table(
        "forbidden_flag",
        "100,000 with a forbidden flag first + 20,000",
        "free",
        forbidden_flag,
        forbidden_flags=(FLAG,),
    ),
    Table(
        "busy_tenant",
        "90,000 in 4 locked queues first + 20,000 in 3,996 queues",
        "queued",
        busy_tenant,
    ),
    Table(
        "busy_lanes",
        "90,000 in the 4 busy lanes of a tenant first + 20,000 in lanes of 999 tenants",
        "queued",
        busy_lanes,
    ),
    Table("many_lanes", "100,000, each in one of 4 lanes of 25,000 tenants", "queued", many_lanes),
    Table("identifiers", "200 tasks with 1,000 each", "free", identifiers, tasks=IDENTIFIERS),
)


def build(connection: psycopg.Connection, table: Table, scale: float) -> None:
    """Fill a database with it, and let the server know what is there."""
    connection.execute(TASKS, (IDENTIFIERS - 1,))
    table.fill(Filler(connection, scale))
    # What lies there for long is known to be visible to all; without a flush before it, nothing is.
    connection.execute("checkpoint")
    connection.execute("vacuum analyze")
    connection.execute("checkpoint")
