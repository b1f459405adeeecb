"""Who is measured: ours, and the others beside it."""

from benchmarks.contenders.contender import Contender, WorkerContender
from benchmarks.contenders.engine import Engine
from benchmarks.contenders.node import Node
from benchmarks.contenders.ours import Ours, OursDirect, OursOnce
from benchmarks.contenders.pgqueuer import PgQueuer
from benchmarks.contenders.procrastinate import Procrastinate
from benchmarks.contenders.rust import Rust

WORKERS: tuple[WorkerContender, ...] = (Ours(), Node(), Rust(), PgQueuer(), Procrastinate())
DRAINERS: tuple[Contender, ...] = (
    Ours(),
    OursOnce(),
    Node(),
    Rust(),
    Engine(1),
    Engine(2),
    PgQueuer(),
    Procrastinate(),
)
# Without its local queue, the Rust worker waits for its poll interval after each job: 25 jobs a
# second. That says nothing about the cost of a fetch.
DIRECT: tuple[Contender, ...] = (OursDirect(), Node("direct"))

__all__ = ["DIRECT", "DRAINERS", "WORKERS", "Contender", "WorkerContender"]
