"""The routes about a queue: their parameters, formats and errors, without a database."""

import asyncio
import json
import urllib.error
import urllib.request

import pytest
from psycopg import OperationalError

from graphile_worker._cli.health import health_server
from graphile_worker._cli.http_server import Request
from graphile_worker._cli.metrics_routes import (
    MIN_WRITE_INTERVAL_SECONDS,
    MetricsWriter,
    ScaleQuery,
    build_queue_routes,
    parse_scale_query,
)
from graphile_worker._metrics.definitions import JOBS_RUNNING
from graphile_worker._metrics.values import Families
from graphile_worker._sql.identifiers import Schemas
from graphile_worker.ops.queue_monitor import RunnableCounter, TooManyCountsError
from tests.support.cluster import free_port

SCHEMAS = Schemas.from_names("graphile_worker")


def get(port: int, path: str, accept: str = "") -> tuple[int, str, str]:
    """Return the status, the content type and the text of the answer."""
    headers = {"Accept": accept} if accept else {}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def test_scale_takes_the_jobs_of_a_pod_the_most_pods_and_tasks():
    for query, expected in (
        ({"jobs": ["10"]}, ScaleQuery(jobs=10)),
        ({"jobs": ["10"], "max": ["20"]}, ScaleQuery(jobs=10, max_pods=20)),
        (
            {"jobs": ["1"], "tasks": ["b,a", "a,é \n"]},
            ScaleQuery(jobs=1, tasks=("a", "b", "é \n")),
        ),
        ({"jobs": ["1"], "except": ["b,a*"]}, ScaleQuery(jobs=1, excluded=("a*", "b"))),
    ):
        assert parse_scale_query(query) == expected


def test_scale_rejects_wrong_parameters():
    numbers = ("", "0", "-1", "1.5", "1e3", "²", "٣", " 1", "1000001", "9" * 5000)
    for query in (
        {},
        {"max": ["20"]},
        {"jobs": ["1", "2"]},
        # A mistyped name would count the jobs of all tasks.
        {"jobs": ["1"], "task": ["a"]},
        *({"jobs": [each]} for each in numbers),
        *({"jobs": ["1"], "max": [each]} for each in numbers),
        *(
            {"jobs": ["1"], name: [each]}
            for name in ("tasks", "except")
            for each in ("", "a,", ",", "a,,b", "\0", "x" * 129)
        ),
    ):
        with pytest.raises(ValueError, match=r"^(unknown )?parameter .*\.$"):
            parse_scale_query(query)


def test_pods_are_the_runnable_jobs_divided_by_the_jobs_of_a_pod():
    for query, runnable, pods in (
        (ScaleQuery(jobs=10), 0, 0),
        (ScaleQuery(jobs=10), 1, 1),
        (ScaleQuery(jobs=10), 10, 1),
        (ScaleQuery(jobs=10), 63, 7),
        (ScaleQuery(jobs=10, max_pods=5), 63, 5),
    ):
        assert query.compute_pods(runnable) == pods


def test_counting_stops_at_the_jobs_of_the_most_pods():
    for query, limit in (
        (ScaleQuery(jobs=10), 10_000),
        (ScaleQuery(jobs=10, max_pods=20), 200),
        (ScaleQuery(jobs=1_000_000, max_pods=1_000_000), 10_000),
    ):
        assert query.limit == limit


async def test_routes_answer_without_a_database(caplog):
    routes = build_queue_routes(f"host=127.0.0.1 port={free_port()} user=x dbname=x", SCHEMAS)
    async with health_server(0, lambda: True, routes=routes) as port:
        text, openmetrics, scale, wrong, again = [
            await asyncio.to_thread(get, port, *args)
            for args in (
                ("/metrics/queue",),
                ("/metrics/queue", "application/openmetrics-text;version=1.0.0,*/*;q=0.1"),
                ("/scale?jobs=10&tasks=a",),
                ("/scale?jobs=ten",),
                ("/scale?jobs=10&tasks=a",),
            )
        ]

    assert text[:2] == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert "\ngraphile_worker_queue_reachable 0\n" in text[2]
    assert "\ngraphile_worker_snapshot_errors_total 1\n" in text[2]
    assert openmetrics[:2] == (200, "application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert openmetrics[2].endswith("\n# EOF\n")
    assert scale == again == (503, "application/json", '{"error": "the jobs cannot be counted"}')
    assert wrong[:2] == (400, "application/json")
    assert json.loads(wrong[2])["error"].startswith("parameter jobs must be one number")
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "look at the queue failed, retrying",
        "count of runnable jobs failed, retrying",
    ]


async def test_at_most_100_sets_of_tasks_are_counted_within_a_pause():
    now = 0.0
    conninfo = f"host=127.0.0.1 port={free_port()} user=x dbname=x"
    counter = RunnableCounter(conninfo, SCHEMAS, clock=lambda: now)

    async def count_each() -> list[type[Exception]]:
        kinds = []
        for n in range(102):
            try:
                await counter.count([f"t{n}"])
            except Exception as error:
                kinds.append(type(error))
        return kinds

    assert await count_each() == [OperationalError] * 100 + [TooManyCountsError] * 2
    now = 5.0
    assert await count_each() == [OperationalError] * 100 + [TooManyCountsError] * 2


def test_many_clients_get_the_text_of_one_write():
    now, writes = 100.0, 0

    def collect() -> Families:
        nonlocal writes
        writes += 1
        return {JOBS_RUNNING: {(): writes}}

    writer = MetricsWriter(lambda: now)
    plain, openmetrics = (
        Request("GET", "/metrics", {}, accept) for accept in ("", "application/openmetrics-text")
    )
    for _ in range(50):
        assert writer.respond(plain, collect).body.endswith(" 1\n")
        assert writer.respond(openmetrics, collect).body.endswith(" 2\n# EOF\n")
    now += MIN_WRITE_INTERVAL_SECONDS
    assert writer.respond(plain, collect).body.endswith(" 3\n")
    assert writes == 3
