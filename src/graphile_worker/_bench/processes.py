"""Worker processes of a benchmark or of the demo, which end with it."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from graphile_worker._bench.schema import BenchTarget
from graphile_worker.errors import GraphileWorkerError

# A log line per job would be most of the work.
QUIET_VARIABLES = {"NO_LOG_SUCCESS": "1"}

BENCH_APP = "graphile_worker._bench.worker"


class WorkerProcess:
    """`graphile-worker` with an app, by default that of the benchmarks."""

    def __init__(self, target: BenchTarget, *flags: str, app: str = BENCH_APP) -> None:
        command = [sys.executable, "-m", "graphile_worker", "--schema", target.schema]
        command += ["--app", app, *flags]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            env=_build_environment(target),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            # Ctrl-C is for the benchmark, which then stops its workers.
            start_new_session=True,
        )

    def read_message(self, key: str) -> dict[str, Any]:
        """Read messages until one has this key, and return it."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message: dict[str, Any] = json.loads(line)
            if key in message:
                return message
        raise GraphileWorkerError(f"a worker process stopped: {self._read_stderr()}")

    def send_start(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"begin\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        """Wait until the process exits, with any exit code."""
        self._process.wait()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                pipe.close()

    def _read_stderr(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip() or "no error output"


@contextmanager
def start_workers(
    count: int, target: BenchTarget, *flags: str, app: str = BENCH_APP
) -> Iterator[list[WorkerProcess]]:
    """Start worker processes, and wait until all are ready."""
    with ExitStack() as stack:
        workers = []
        for _ in range(count):
            workers.append(WorkerProcess(target, *flags, app=app))
            stack.callback(workers[-1].close)
        for worker in workers:
            worker.read_message("ready")
        yield workers


def _build_environment(target: BenchTarget) -> dict[str, str]:
    # Not as a flag, which all users of the machine can read: it may contain a password.
    database = {} if target.connection is None else {"DATABASE_URL": target.connection}
    return {**os.environ, **QUIET_VARIABLES, **database}
