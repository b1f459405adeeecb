"""Programs in processes of their own: told by the environment, heard line by line."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.server import Database

ROOT = Path(__file__).parent.parent


class Program:
    """A program that runs."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path | str = ROOT
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._cpu_seconds = 0.0
        self.started = time.monotonic()
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )

    def wait_for_line(self, word: str) -> dict[str, Any]:
        """The next of its lines with this word."""
        for said in self.lines():
            if word in said:
                return said
        raise RuntimeError(f"it ended without saying {word!r}:\n{self._last_words()}")

    def lines(self) -> Iterator[dict[str, Any]]:
        """All that it says, until it ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"{"):
                yield json.loads(line)

    def check(self) -> None:
        """That it still runs."""
        if self._process.poll() is not None:
            raise RuntimeError(f"it ended too early:\n{self._last_words()}")

    def end(self) -> None:
        """Until it has ended by itself."""
        if self._process.wait() != 0:
            raise RuntimeError(f"it failed:\n{self._last_words()}")

    def kill(self) -> float:
        """End it where it stands; the CPU time that it used in all, from getrusage."""
        if self._process.returncode is None:
            # Popen.kill() would reap a process that has just ended, and its CPU time with it.
            os.kill(self._process.pid, signal.SIGKILL)
            _, status, used = os.wait4(self._process.pid, 0)
            self._process.returncode = os.waitstatus_to_exitcode(status)
            self._cpu_seconds = used.ru_utime + used.ru_stime
        return self._cpu_seconds

    def close(self) -> None:
        self.kill()
        for pipe in (self._process.stdout, self._errors):
            if pipe is not None:
                pipe.close()

    def _last_words(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")


@contextmanager
def running(
    command: Sequence[str], environment: Mapping[str, str], folder: Path | str = ROOT
) -> Iterator[Program]:
    program = Program(command, environment, folder)
    try:
        yield program
    finally:
        program.close()


def run(command: Sequence[str], environment: Mapping[str, str], folder: Path | str = ROOT) -> None:
    """To its end, which must be a good one."""
    with running(command, environment, folder) as program:
        program.end()


def environment(
    database: Database, *, jobs: int = 1, concurrency: int = 1, batch: int = 1
) -> dict[str, str]:
    """What a program is told. A line of log for every job is nobody's work here."""
    told = {
        "BENCH_DSN": database.url,
        "BENCH_JOBS": str(jobs),
        "BENCH_CONCURRENCY": str(concurrency),
        "BENCH_BATCH": str(batch),
        "NO_LOG_SUCCESS": "1",
    }
    # Installed packages are compiled, and nothing of the caller's reaches a worker by accident.
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PG", "GRAPHILE_", "DATABASE_URL", "PYTHONDONTWRITEBYTECODE"))
    }
    return {**kept, **told}
