"""How many jobs several processes add in a second, each in its own transaction, by `notify`.

The data is on a disk and every commit is flushed, because the lock of a notification is held while
a commit waits for the disk. No worker runs: the lock is taken with and without listeners.
"""

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier, Event
from typing import Any

from benchmarks.contenders.ours import Ours
from benchmarks.rounds import Figures, alternated, ratios, summary
from benchmarks.server import Database, Server
from graphile_worker import sync

MODES = ("coalesced", "on_commit", "never")


def producers(server: Server, *, processes: int, seconds: float, rounds: int) -> dict[str, Any]:
    measures = {mode: _measure(server, mode, processes, seconds) for mode in MODES}
    found = alternated(measures, rounds)
    return {
        "settings": {"processes": processes, "seconds": seconds, "rounds": rounds},
        "modes": {mode: summary(found[mode]) for mode in MODES},
        "ratio_of": "jobs_per_second",
        "ratios": ratios(found, "coalesced", "jobs_per_second"),
    }


def _measure(server: Server, mode: str, processes: int, seconds: float) -> Callable[[], Figures]:
    def measure() -> Figures:
        ours = Ours()
        with server.database(ours.kind, ours.install) as database:
            return {"jobs_per_second": _add(database, mode, processes, seconds)}

    return measure


def _add(database: Database, mode: str, processes: int, seconds: float) -> float:
    context = multiprocessing.get_context("fork")
    barrier, ended = context.Barrier(processes + 1), context.Event()
    programs = [
        context.Process(target=_produce, args=(database.url, mode, barrier, ended))
        for _ in range(processes)
    ]
    for program in programs:
        program.start()
    barrier.wait()
    with database.connected() as connection:
        before, started_at = _count(connection), time.monotonic()
        time.sleep(seconds)
        rate = (_count(connection) - before) / (time.monotonic() - started_at)
    ended.set()
    for program in programs:
        program.join()
    return rate


def _count(connection: Any) -> int:
    row = connection.execute("select count(*) from graphile_worker._private_jobs").fetchone()
    return int(row[0])


def _produce(url: str, mode: Any, barrier: Barrier, ended: Event) -> None:
    with sync.Client(url, notify=mode) as client:
        # Until the client inserts directly.
        for _ in range(5):
            client.add_job("task", {"id": 1})
        barrier.wait()
        while not ended.is_set():
            client.add_job("task", {"id": 1})
