"""Run the demo: a temporary schema, its workers, a producer, and `top` on it."""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta

import click
import psycopg

from graphile_worker._bench.processes import start_workers
from graphile_worker._bench.schema import EXIT_SIGNALS, BenchTarget, open_bench_target
from graphile_worker._cli.interrupts import handle_interrupts
from graphile_worker._cli.settings.layers import Settings, SettingSource, SettingValue
from graphile_worker._cli.top.start import has_terminal, run_top
from graphile_worker._sql.identifiers import Schemas
from graphile_worker.errors import GraphileWorkerError
from graphile_worker.jobs import JobSpec

SCHEMA_PREFIX = "graphile_worker_demo_"
APP = "graphile_worker._cli.demo.tasks"
WORKER_COUNT = 2
CONCURRENCY = 4

DEFAULT_SECONDS = 10
PRODUCER_INTERVAL_SECONDS = 0.25
SNAPSHOT_INTERVAL = timedelta(seconds=1)


def run_demo(settings: Settings, seconds: int | None) -> None:
    """Run until the user quits `top`, or for some seconds without a terminal."""
    connection = settings.value("connection")
    if seconds is None and not has_terminal():
        seconds = DEFAULT_SECONDS
    with handle_interrupts(), open_bench_target(connection, SCHEMA_PREFIX) as target:
        click.echo(f"demo: starting {WORKER_COUNT} workers in schema {target.schema}", err=True)
        with _start_demo_workers(target), _produce_jobs(target):
            try:
                _show(_with_schema(settings, target.schema), seconds)
            finally:
                # top has reset the handlers, and a second signal must not stop the cleanup.
                for each in EXIT_SIGNALS:
                    signal.signal(each, signal.SIG_IGN)
    click.echo(f"demo: ended, dropped schema {target.schema}", err=True)


def _show(settings: Settings, seconds: int | None) -> None:
    if seconds is not None:
        time.sleep(seconds)
    run_top(settings, interval=SNAPSHOT_INTERVAL, once=seconds is not None, as_json=False)


def _with_schema(settings: Settings, schema: str) -> Settings:
    names = {"schema": schema, "ext_schema": None}
    override = {name: SettingValue(value, SettingSource.FLAG, "") for name, value in names.items()}
    return replace(settings, flags={**settings.flags, **override})


@contextmanager
def _start_demo_workers(target: BenchTarget) -> Iterator[None]:
    # The config file and the crontab in the current directory are for other workers.
    flags = ["--config", os.devnull, "--crontab", os.devnull, "--processes", "off"]
    flags += ["--health-port", "off", "--ext-schema", Schemas.from_names(target.schema).companion]
    flags += ["--jobs", str(CONCURRENCY)]
    with start_workers(WORKER_COUNT, target, *flags, app=APP) as workers:
        for worker in workers:
            worker.send_start()
        yield


@contextmanager
def _produce_jobs(target: BenchTarget) -> Iterator[None]:
    """Add jobs in a thread."""
    stopping = threading.Event()

    def produce() -> None:
        with target.client() as client:
            while not stopping.wait(PRODUCER_INTERVAL_SECONDS):
                # top shows an outage, after which the producer continues.
                with suppress(psycopg.Error, OSError, GraphileWorkerError):
                    client.add_jobs(_make_jobs())

    thread = threading.Thread(target=produce, name="graphile-worker demo")
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def _make_jobs() -> list[JobSpec]:
    """Return quick jobs, and now and then a slow one, one that may fail, and one of a queue."""
    specs = [
        JobSpec("send_email", {"to": f"user{random.randint(1, 999)}@example.com"})
        for _ in range(random.randint(1, 8))
    ]
    others = [
        (0.2, JobSpec("render_video", {"seconds": random.uniform(1, 5)})),
        (0.2, JobSpec("call_webhook", {"url": "https://example.com"}, max_attempts=3)),
        (0.6, JobSpec("update_ledger", {"account": 1}, queue_name="ledger")),
    ]
    return specs + [spec for probability, spec in others if random.random() < probability]
