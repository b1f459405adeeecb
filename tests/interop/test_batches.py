"""Batches shared with the reference, and items that many producers gather beside a worker."""

import asyncio
import subprocess
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from graphile_worker import App, WorkerOptions
from graphile_worker.runner import run_once
from tests.support.recorder import wait_until
from tests.support.tiers import size
from tests.support.tools import MODULES, NODE

PROGRAM = Path(__file__).parent / "programs" / "batch.js"
EVENTS = size(gate=2_000, nightly=10_000)
ROW = """
select payload::text, attempts, max_attempts, last_error, locked_by, locked_at, revision,
  key is null, flags is null, run_at > created_at + interval '1 second'
from :schema._private_jobs
"""


class Languages:
    """Runs what is ready: `odd` rejects the odd numbers of a batch."""

    def __init__(self, database: Any) -> None:
        self._database = database

    async def node(self, how: str) -> None:
        arguments = [MODULES / "gw018", self._database.url, self._database.schema, how]
        command = [str(each) for each in (NODE, PROGRAM, *arguments)]
        await asyncio.to_thread(
            subprocess.run, command, check=True, capture_output=True, timeout=60
        )

    async def python(self, how: str) -> None:
        app = App(self._database.dsn)

        @app.batch_task
        async def numbers(items: list[int]) -> list[BaseException | None]:
            wrong = [how == "odd" and each % 2 for each in items]
            return [
                ValueError(f"{each} is odd") if bad else None
                for each, bad in zip(items, wrong, strict=True)
            ]

        options = WorkerOptions(schema=self._database.schema)
        await run_once(self._database.dsn, app, options=options)


@pytest.fixture
def languages(database) -> Languages:
    return Languages(database)


@pytest.mark.feature("F120")
async def test_a_batch_that_half_fails_leaves_the_same_row_in_both_languages(languages, sql):
    rows = []
    for language in (languages.node, languages.python):
        sql.run("select :schema.add_job('numbers', '[1, 2, 3, 4]')")
        await language("odd")
        rows.append(sql.run(ROW))
        sql.run("delete from :schema._private_jobs")

    theirs, ours = rows
    assert theirs == ours
    assert ours[0][:4] == ("[1,3]", 1, 25, "Batch failures:\n1 is odd\n3 is odd")


@pytest.mark.feature("F120")
@pytest.mark.parametrize("order", [("node", "python"), ("python", "node")])
async def test_one_language_completes_the_items_that_the_other_left_of_a_batch(
    languages, sql, order
):
    first, second = (getattr(languages, each) for each in order)
    sql.run("select :schema.add_job('numbers', '[1, 2, 3, 4]')")

    await first("odd")
    sql.run("update :schema._private_jobs set run_at = now()")
    await second("odd")
    assert sql.run("select payload::jsonb, attempts from :schema._private_jobs") == [([1, 3], 2)]

    sql.run("update :schema._private_jobs set run_at = now()")
    await second("well")
    assert sql.run(ROW) == []


@pytest.mark.feature("F61")
@pytest.mark.single_version
@pytest.mark.timeout(180)
async def test_every_item_that_producers_gather_beside_a_worker_is_handled_once(
    database, sql, figure
):
    producers, keys = 8, 100
    handled: Counter[int] = Counter()
    batches = 0
    app = App(database.dsn, schema=database.schema)

    @app.batch_task
    async def track(items: list[int]) -> None:
        nonlocal batches
        batches += 1
        handled.update(items)

    def produce(number: int) -> None:
        for event in range(number, EVENTS, producers):
            window = timedelta(milliseconds=200)
            track.accumulate(event, key=f"key {event % keys}", delay=window)

    async with app.worker(concurrency=10):
        await asyncio.gather(*(asyncio.to_thread(produce, each) for each in range(producers)))
        await wait_until(lambda: sum(handled.values()) >= EVENTS)
    await app.close()

    figure(f"{EVENTS} events gathered under {keys} keys by {producers} producers: {batches} jobs")
    assert set(handled.values()) == {1}
    assert len(handled) == EVENTS
    assert batches < EVENTS
    assert sql.value("select count(*) from :schema._private_jobs") == 0
