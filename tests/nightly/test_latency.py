"""From add_job in one process to the task in another, alternated with the reference."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from tests.support.tools import MODULES, NODE

PROGRAMS = Path(__file__).parent / "programs"
ADD = "select graphile_worker.add_job('ping', json_build_object('sent', %s::text))"
SAMPLES = 1000
ROUNDS = 5


class Latency(NamedTuple):
    """In milliseconds."""

    p50: float
    p99: float


@contextmanager
def worker(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "NO_LOG_SUCCESS": "1"},
    )
    try:
        answer(process, "ready")
        yield process
    finally:
        process.kill()
        process.communicate()


def answer(process: subprocess.Popen[str], word: str) -> str:
    """The next line that begins with this word."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(word):
            return line.removeprefix(word)
    raise AssertionError("the worker ended")


def measure(command: list[str], dsn: str) -> Latency:
    with worker(command) as process, psycopg.connect(dsn, autocommit=True) as connection:
        # What is prepared on first use is not what a job waits for.
        for _ in range(50):
            sample(process, connection)
        found = sorted(sample(process, connection) for _ in range(SAMPLES))
    return Latency(found[SAMPLES // 2], found[SAMPLES * 99 // 100])


def sample(process: subprocess.Popen[str], connection: psycopg.Connection) -> float:
    connection.execute(ADD, (time.monotonic_ns(),))
    late = int(answer(process, "late ")) / 1e6
    # Until the job before is completed, and the worker is idle after two empty fetches.
    time.sleep(0.006)
    return late


@pytest.mark.feature("F103")
@pytest.mark.serial
@pytest.mark.single_version
@pytest.mark.timeout(400)
def test_a_job_starts_about_as_soon_as_with_node(database, figure):
    if database.schema != "graphile_worker":
        pytest.skip("measured once is enough")
    node = [str(NODE), str(PROGRAMS / "latency.js"), str(MODULES / "gw018"), database.url]
    python = [sys.executable, str(PROGRAMS / "latency.py"), database.dsn]

    rounds = [(measure(node, database.dsn), measure(python, database.dsn)) for _ in range(ROUNDS)]

    ratio = statistics.median(ours.p50 / theirs.p50 for theirs, ours in rounds)
    theirs, ours = (statistics.median(each[n].p50 for each in rounds) for n in (0, 1))
    late = [max(each[n].p99 for each in rounds) for n in (0, 1)]
    figure(
        f"latency p50: Python {ours:.2f} ms, Node {theirs:.2f} ms, ratio {ratio:.2f}; "
        f"worst p99 {late[1]:.1f} and {late[0]:.1f} ms"
    )
    assert ratio <= 1.25
