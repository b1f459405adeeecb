"""Worker processes of the installed package: started, told to begin, heard, ended in any case."""

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

# A line for every job would be most of the work.
QUIET_VARIABLES = {"NO_LOG_SUCCESS": "1"}


class WorkerProcess:
    """`graphile-worker` with the app of the benchmarks."""

    def __init__(self, target: BenchTarget, *flags: str) -> None:
        command = [sys.executable, "-m", "graphile_worker", "--schema", target.schema]
        command += ["--app", "graphile_worker._bench.worker", *flags]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            env=_build_environment(target),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            # Ctrl-C is for the benchmark, which then ends its workers.
            start_new_session=True,
        )

    def read_message(self, key: str) -> dict[str, Any]:
        """The next of its lines with this word."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said: dict[str, Any] = json.loads(line)
            if key in said:
                return said
        raise GraphileWorkerError(f"a worker of the benchmark ended: {self._read_stderr()}")

    def send_start(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"begin\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        """Its exit code is of no interest: it has said what it had to."""
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
        return self._errors.read().decode(errors="replace").strip() or "it said nothing"


@contextmanager
def start_workers(count: int, target: BenchTarget, *flags: str) -> Iterator[list[WorkerProcess]]:
    """So many processes, all of which could begin."""
    with ExitStack() as stack:
        started = []
        for _ in range(count):
            worker = WorkerProcess(target, *flags)
            stack.callback(worker.close)
            started.append(worker)
        for worker in started:
            worker.read_message("ready")
        yield started


def _build_environment(target: BenchTarget) -> dict[str, str]:
    # Not as a flag: everybody on the machine can read those, and there may be a password in it.
    given = {} if target.connection is None else {"DATABASE_URL": target.connection}
    return {**os.environ, **QUIET_VARIABLES, **given}
