"""Worker processes that faults kill, freeze and replace. Each process has its own name."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.laboratory.versions import ROOT, SOURCE, lease_flag
from tests.support.fork_server import ForkedProcess
from tests.support.processes import CLEARED_VARIABLES, INSTALLED, start_process
from tests.support.tools import MODULES, NODE

APP = "tests.laboratory.tasks:app"
NODE_WORKER = ROOT / "tests/chaos/programs/history.js"

# Seconds without a job, while jobs wait, after which a Node worker counts as blocked.
HANGING = 15.0

# Settings in which workers differ; one set is drawn for each process.
WAYS: tuple[Mapping[str, str], ...] = (
    {},
    {"GRAPHILE_WORKER_LOCAL_QUEUE": "off"},
    {"GRAPHILE_WORKER_LOCAL_QUEUE_SIZE": "64"},
    {"GRAPHILE_WORKER_LOCAL_QUEUE_SIZE": "500"},
    {"GRAPHILE_WORKER_COMPLETE_BATCH_DELAY": "off", "GRAPHILE_WORKER_FAIL_BATCH_DELAY": "off"},
    {"GRAPHILE_WORKER_COMPLETE_BATCH_DELAY": "50"},
    {"GRAPHILE_WORKER_COMPLETE_BATCH_DELAY": "250", "GRAPHILE_WORKER_LOCAL_QUEUE_SIZE": "64"},
    {"GRAPHILE_WORKER_LISTEN": "false", "GRAPHILE_WORKER_POLL_INTERVAL": "200"},
)


@dataclass
class Life:
    """One process, from its start to its end."""

    name: str
    process: subprocess.Popen[str] | ForkedProcess
    born: float
    # The folder of the library that it runs.
    source: Path
    # Whether the test ended it; any other end is reported.
    expected: bool = False
    frozen: bool = False

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None


@dataclass
class Surroundings:
    """The settings that all workers of a run share."""

    dsn: str
    schema: str
    folder: Path
    threshold: float
    crontab: Path | None = None
    more: Mapping[str, str] = field(default_factory=dict)
    # The version with which a run starts.
    source: Path = ROOT / SOURCE


class Fleet:
    """Keeps `size` workers running; the injector of faults ends some of them."""

    def __init__(self, around: Surroundings, size: int, rng: random.Random) -> None:
        self._around = around
        self._rng = rng
        self._numbers = [0] * size
        self._places: list[Life | None] = [None] * size
        self._sources = [around.source] * size
        self._lock = threading.Lock()
        self.lives: list[Life] = []
        self.failed_starts = 0

    def start(self) -> None:
        for place in range(len(self._places)):
            self._start(place)

    def running(self) -> list[int]:
        """Return the slots whose process runs and is not frozen."""
        with self._lock:
            return [
                place
                for place, life in enumerate(self._places)
                if life is not None and life.is_running and not life.frozen
            ]

    def name_of(self, place: int) -> str:
        life = self._places[place]
        assert life is not None
        return life.name

    def kill(self, place: int) -> str:
        """Send SIGKILL, start a successor and return the name of the killed process."""
        life = self._end(place, signal.SIGKILL)
        life.process.wait(30)
        self._start(place)
        return life.name

    def freeze(self, place: int, seconds: float) -> str:
        """Send SIGSTOP, and SIGCONT after some seconds: the worker has lost its jobs meanwhile."""
        life = self._places[place]
        assert life is not None
        life.frozen = True
        life.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        life.process.send_signal(signal.SIGCONT)
        life.frozen = False
        return life.name

    def replace(self, place: int) -> str:
        """Send SIGTERM and start a successor at once; the old process finishes its jobs."""
        life = self._end(place, signal.SIGTERM)
        self._start(place)
        return life.name

    def upgrade(self, place: int, source: Path) -> str:
        """Replace a process by one of another version, which this slot keeps."""
        self._sources[place] = source
        return self.replace(place)

    def behind(self, source: Path) -> list[int]:
        """Return the slots with another version."""
        return [place for place, each in enumerate(self._sources) if each != source]

    def versions(self, source: Path) -> tuple[int, int]:
        """Return how many processes ran another version, and how many this one."""
        ours = sum(life.source == source for life in self.lives)
        return len(self.lives) - ours, ours

    def look(self) -> list[str]:
        """Replace the processes that ended without a signal from the test, and return their names.

        A process that ends while it starts, because the database is unreachable, is started again.
        """
        fallen = []
        for place, life in enumerate(list(self._places)):
            if life is not None and not life.is_running and not life.expected:
                if self._was_ready(life):
                    fallen.append(life.name)
                else:
                    self.failed_starts += 1
                life.expected = True
                self._start(place)
        return fallen

    def _was_ready(self, life: Life) -> bool:
        return (self._around.folder / f"{life.name}.ready").exists()

    def stop(self, within: float = 40.0) -> list[str]:
        """Send SIGTERM to all, and return the names of those that had to be killed."""
        bad = []
        for life in self.lives:
            if life.is_running:
                life.expected = True
                life.process.send_signal(signal.SIGCONT)
                life.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + within
        for life in self.lives:
            try:
                life.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                bad.append(life.name)
                life.process.kill()
                life.process.wait()
        return bad

    def _end(self, place: int, number: signal.Signals) -> Life:
        life = self._places[place]
        assert life is not None
        life.expected = True
        life.process.send_signal(number)
        return life

    def _start(self, place: int) -> None:
        with self._lock:
            self._numbers[place] += 1
            name = f"py-{place}-{self._numbers[place]}"
            source = self._sources[place]
            life = Life(name, self._spawn(name, source), time.time(), source)
            self._places[place] = life
            self.lives.append(life)

    def _spawn(self, name: str, source: Path) -> subprocess.Popen[str] | ForkedProcess:
        # The installed command runs this version, so that a fork will do.
        is_older = source != ROOT / SOURCE
        command = [sys.executable, "-m", "graphile_worker"] if is_older else [INSTALLED]
        command += ["--app", APP]
        command += [lease_flag(source), str(int(self._around.threshold * 1000))]
        if self._around.crontab is not None:
            command += ["--crontab", str(self._around.crontab)]
        command += ["-j", str(self._rng.choice((1, 4, 10)))]
        ways = {**self._rng.choice(WAYS), **({"PYTHONPATH": str(source)} if is_older else {})}
        return spawn(command, name, self._around, ways)


class NodeFleet:
    """A few Node workers beside the Python workers; those that end or block are replaced."""

    def __init__(self, around: Surroundings, size: int) -> None:
        self._around = around
        self._size = size
        self._living: list[Life] = []
        # How they ended, one line for each.
        self.ends: list[str] = []

    def look(self) -> None:
        """Replace the workers that have ended, or have not started a job for long."""
        for life in list(self._living):
            if not life.is_running:
                self._bury(life, f"exit code {life.process.wait()}")
            elif time.time() - self._last_heard(life) > HANGING:
                life.process.kill()
                life.process.wait()
                self._bury(life, "hanging")
        while len(self._living) < self._size:
            self._living.append(self._start())

    def stop(self) -> None:
        for life in self._living:
            life.process.send_signal(signal.SIGTERM)
            try:
                life.process.wait(15)
            except subprocess.TimeoutExpired:
                life.process.kill()
                life.process.wait()

    def _start(self) -> Life:
        started = len(self.ends) + len(self._living) + 1
        name = f"node-{started}"
        # Its ends are written one by one or together, by turns.
        mode = "batched" if started % 2 else "defaults"
        command = node_worker(self._around.dsn, self._around.schema, mode, self._journal(name))
        process = spawn(command, name, self._around, {})
        return Life(name, process, time.time(), self._around.source)

    def _bury(self, life: Life, how: str) -> None:
        self._living.remove(life)
        self.ends.append(f"{life.name}: {how}")

    def _last_heard(self, life: Life) -> float:
        journal = self._journal(life.name)
        return max(life.born, journal.stat().st_mtime if journal.exists() else 0.0)

    def _journal(self, name: str) -> Path:
        return self._around.folder / f"{name}.jsonl"


def node_worker(url: str, schema: str, mode: str, journal: Path) -> list[str]:
    """Return the command of a Node worker that records what it runs."""
    package = str(MODULES / "gw018")
    return [str(NODE), str(NODE_WORKER), package, url, schema, "4", mode, str(journal)]


def spawn(
    command: Sequence[str], name: str, around: Surroundings, ways: Mapping[str, str]
) -> subprocess.Popen[str] | ForkedProcess:
    """Start a process with this name in the database and in the files of the run."""
    kept = {key: value for key, value in os.environ.items() if not CLEARED_VARIABLES.match(key)}
    variables = {
        **kept,
        **around.more,
        **ways,
        "DATABASE_URL": around.dsn,
        "GRAPHILE_WORKER_SCHEMA": around.schema,
        "PGAPPNAME": name,
        "NO_LOG_SUCCESS": "1",
        "LABORATORY_JOURNAL": str(around.folder / f"{name}.jsonl"),
    }
    with (around.folder / f"{name}.log").open("ab") as log:
        return start_process(command, cwd=ROOT, env=variables, stdout=log, stderr=log)
