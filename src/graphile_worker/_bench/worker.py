"""The app of the worker processes of a benchmark: `--app graphile_worker._bench.worker`.

A process reports that it is ready, waits for the signal to start, and reports its results at the
end: one JSON object per line on standard output.
"""

import asyncio
import json
import os
import resource
import signal
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from graphile_worker.app import App

STDIN, STDOUT = 0, 1


def write_message(**facts: object) -> None:
    os.write(STDOUT, json.dumps(facts).encode() + b"\n")


@asynccontextmanager
async def wait_for_start() -> AsyncIterator[None]:
    """Wait with an open connection and a checked schema, so that all processes start together."""
    write_message(ready=time.monotonic())
    if not await asyncio.to_thread(os.read, STDIN, 64):
        raise RuntimeError("the benchmark has ended")
    threading.Thread(target=_stop_with_benchmark, daemon=True).start()
    used_before = _cpu_seconds()
    yield
    write_message(done=time.monotonic(), jobs=_jobs_run, cpu=_cpu_seconds() - used_before)


app = App(lifespan=wait_for_start)
_jobs_run = 0


@app.task
async def nothing(id: int) -> None:
    global _jobs_run
    _jobs_run += 1


@app.task
async def ping(sent: int) -> None:
    write_message(latency=time.monotonic_ns() - sent)


def _stop_with_benchmark() -> None:
    """Stop this worker when the benchmark ends, even if it was killed."""
    while os.read(STDIN, 64):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
