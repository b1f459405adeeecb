"""Ways to complete one batch of jobs and claim the next: the database's part of the throughput.

No job runs, so the figures are an upper bound for a worker that uses the way. Python is busy only
with the ids of the jobs.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg

from benchmarks.contenders.ours import SCHEMA, Ours
from benchmarks.rounds import Figures, alternated, ratios, summary
from benchmarks.server import Database, Server
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.claim import (
    claim_plain_jobs,
    complete_claimed_jobs,
    format_ids,
    get_task_ids,
)
from graphile_worker._sql.query import Query
from graphile_worker._sql.render import render_bytes

SCHEMAS = Schemas.from_names(SCHEMA)
POOLS = ("one", "other")

# Before the steps of a claim. Its parameter follows those of the claim.
COMPLETION_STEP = b"""with completed as (
  delete from graphile_worker._private_jobs
  where id = any ($9::bigint[]) and locked_by = $1::text
  returning id
), """


class Session:
    """A connection that claims and completes batches for one pool."""

    def __init__(self, url: str, batch: int, pool_id: str = POOLS[0]) -> None:
        self.connection = psycopg.connect(
            url, autocommit=True, cursor_factory=psycopg.RawCursor, prepare_threshold=0
        )
        self.connection.execute("set plan_cache_mode = force_generic_plan")
        tasks = get_task_ids(["noop"])
        known = tasks.read(self.run(tasks))
        self._pool_id = pool_id
        self.claim_query = claim_plain_jobs(pool_id, known, limit=batch)

    def run(self, query: Query[Any], *, binary: bool = False) -> list[Any]:
        cursor = self.connection.cursor(binary=binary)
        return cursor.execute(render_bytes(query.statement, SCHEMAS), query.args).fetchall()

    def claim(self, *, binary: bool = False) -> list[int]:
        return [row[0] for row in self.run(self.claim_query, binary=binary)]

    def complete(self, ids: list[int]) -> None:
        self.run(complete_claimed_jobs(self._pool_id, ids, []))

    def complete_and_claim(self, ids: list[int]) -> list[int]:
        """Send both in one round trip."""
        query = complete_claimed_jobs(self._pool_id, ids, [])
        execute = self.connection.execute
        execute(render_bytes(query.statement, SCHEMAS), query.args)
        claimed = execute(render_bytes(self.claim_query.statement, SCHEMAS), self.claim_query.args)
        return [row[0] for row in claimed.fetchall()]


def separate(url: str, batch: int, *, binary: bool = False, pool_id: str = POOLS[0]) -> None:
    session = Session(url, batch, pool_id)
    ids = session.claim(binary=binary)
    while ids:
        session.complete(ids)
        ids = session.claim(binary=binary)


def two_connections(url: str, batch: int) -> None:
    """Complete a batch while the next is claimed, as the worker does."""
    claiming, completing = Session(url, batch), Session(url, batch)
    ids = claiming.claim()
    while ids:
        thread = threading.Thread(target=completing.complete, args=(ids,))
        thread.start()
        ids = claiming.claim()
        thread.join()


def pipeline(url: str, batch: int) -> None:
    session = Session(url, batch)
    ids = session.claim()
    while ids:
        with session.connection.pipeline():
            ids = session.complete_and_claim(ids)


def one_commit(url: str, batch: int) -> None:
    session = Session(url, batch)
    ids = session.claim()
    while ids:
        with session.connection.pipeline(), session.connection.transaction():
            ids = session.complete_and_claim(ids)


def one_statement(url: str, batch: int) -> None:
    session = Session(url, batch)
    text = render_bytes(session.claim_query.statement, SCHEMAS)
    before, _, steps = text.partition(b"with ")
    ids = session.claim()
    while ids:
        args = (*session.claim_query.args, format_ids(ids))
        rows = session.connection.execute(before + COMPLETION_STEP + steps, args).fetchall()
        ids = [row[0] for row in rows]


def two_in_flight(url: str, batch: int) -> None:
    threads = [
        threading.Thread(target=partial(separate, url, batch, pool_id=pool_id)) for pool_id in POOLS
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


WAYS: dict[str, tuple[str, Callable[[str, int], None]]] = {
    "two_connections": ("a completion beside the next claim, as the worker does", two_connections),
    "separate": ("one after the other", separate),
    "pipeline": ("both in one round trip", pipeline),
    "one_commit": ("both in one transaction and one round trip", one_commit),
    "one_statement": ("both in one statement", one_statement),
    "two_in_flight": ("two batches at once", two_in_flight),
    "binary": ("one after the other, results in binary format", partial(separate, binary=True)),
}


def ways(server: Server, *, jobs: int, batch: int, rounds: int) -> dict[str, Any]:
    measures = {name: _measure(server, run, jobs, batch) for name, (_, run) in WAYS.items()}
    found = alternated(measures, rounds)
    return {
        "settings": {"jobs": jobs, "batch": batch, "rounds": rounds},
        "contenders": {
            name: {"label": label, **summary(found[name])} for name, (label, _) in WAYS.items()
        },
        "ratio_of": "jobs_per_second",
        "ratios": ratios(found, next(iter(WAYS)), "jobs_per_second"),
    }


def _measure(
    server: Server, run: Callable[[str, int], None], jobs: int, batch: int
) -> Callable[[], Figures]:
    ours = Ours()

    def install_and_run(database: Database) -> Figures:
        ours.fill(database, jobs)
        started_at = time.monotonic()
        run(database.url, batch)
        return {"jobs_per_second": jobs / (time.monotonic() - started_at)}

    def measure() -> Figures:
        with server.database(ours.kind, ours.install) as database:
            return install_and_run(database)

    return measure
