"""The decisions of the parent of worker processes, without processes."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from graphile_worker._cli.supervisor import process_set as process_set_module
from graphile_worker._cli.supervisor.parent_pipe import FINISH
from graphile_worker._cli.supervisor.process_set import ProcessSet, Slot, compute_backoff
from graphile_worker._cli.supervisor.supervised_process import (
    SupervisedProcess,
    build_child_command,
)
from graphile_worker._support import rss
from graphile_worker._support.rss import read_resident_bytes
from tests.support.recorder import wait_until


class ExitedProcess:
    """A process that ran for a number of seconds."""

    def __init__(self, seconds: float, *, was_ready: bool = True) -> None:
        self.seconds_served = seconds
        self.was_ready = was_ready


def record(*children: ExitedProcess) -> Slot:
    slot = Slot()
    for child in children:
        slot.record_exit(child)  # type: ignore[arg-type]
    return slot


def test_the_backoff_doubles_up_to_30_seconds():
    pauses = [compute_backoff(number) for number in range(10)]

    assert pauses == [0, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert compute_backoff(1_000_000) == 30


def test_quick_exits_in_a_row_are_counted():
    assert record(ExitedProcess(1), ExitedProcess(9)).quick_exits == 2
    assert record(ExitedProcess(1), ExitedProcess(11)).quick_exits == 0
    assert record(ExitedProcess(1), ExitedProcess(11), ExitedProcess(1)).quick_exits == 1


def test_failed_starts_in_a_row_are_counted():
    failed, worked = ExitedProcess(1, was_ready=False), ExitedProcess(1)

    assert record(failed, failed).failed_starts == 2
    assert record(failed, worked).failed_starts == 0


@pytest.mark.parametrize(
    ("before", "flags"),
    [
        (["/usr/bin/graphile-worker"], ["-p", "2", "--once"]),
        (["-W", "error", "-m", "graphile_worker"], ["-p2"]),
        (["-m", "graphile_worker"], ["-p", "2", "--"]),
    ],
)
def test_a_child_has_the_command_of_its_parent(monkeypatch, before, flags):
    monkeypatch.setattr(sys, "orig_argv", ["python", *before, *flags])
    monkeypatch.setattr(sys, "argv", ["anything", *flags])

    assert build_child_command(5) == [sys.executable, *before, "--parent=5", *flags]


def test_the_memory_of_a_process_is_read():
    used = read_resident_bytes(os.getpid())

    assert used is not None
    assert used > 10 * 1024 * 1024


def test_without_proc_the_memory_is_read_from_ps(monkeypatch):
    exact = read_resident_bytes(os.getpid())
    monkeypatch.setattr(rss, "Path", lambda path: Path("/nowhere"))
    output = f"{(exact or 0) // 1024}\n"
    monkeypatch.setattr(
        subprocess,
        "run",
        lambda *args, **options: subprocess.CompletedProcess(args, 0, stdout=output),
    )

    assert read_resident_bytes(os.getpid()) == pytest.approx(exact, abs=1024)


def test_without_proc_and_ps_the_memory_is_unknown(monkeypatch):
    monkeypatch.setattr(rss, "Path", lambda path: Path("/nowhere"))
    monkeypatch.setenv("PATH", "/nowhere")

    assert read_resident_bytes(os.getpid()) is None


def test_the_memory_of_an_exited_process_is_unknown():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()

    assert read_resident_bytes(gone.pid) is None


# Replacements


class FakeProcess:
    """A process that a test makes ready, or ends."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.was_ready = self.is_ready = False
        self.seconds_served = 3600.0
        self.exit_code = 0
        self.exit_description = "exited"
        self.messages: list[bytes] = []
        self.is_killed = False
        self._ready = asyncio.Event()
        self._due = asyncio.Event()
        self._exited = asyncio.Event()

    @property
    def has_exited(self) -> bool:
        return self._exited.is_set()

    def make_ready(self) -> None:
        self.was_ready = self.is_ready = True
        self._ready.set()

    def make_due(self) -> None:
        self._due.set()

    def exit(self) -> None:
        for each in (self._exited, self._ready, self._due):
            each.set()

    def kill(self) -> None:
        self.is_killed = True
        self.exit()

    def send(self, message: bytes) -> None:
        self.messages.append(message)
        if message == FINISH:
            self.exit()

    async def wait(self) -> None:
        await self._exited.wait()

    async def wait_until_ready(self) -> bool:
        await self._ready.wait()
        return self.was_ready and not self.has_exited

    async def wait_until_exit_or_due(self) -> None:
        await self._due.wait()


@pytest.fixture
def processes(monkeypatch) -> list[FakeProcess]:
    """The processes that a set starts."""
    started: list[FakeProcess] = []

    async def start(*args: object) -> FakeProcess:
        started.append(FakeProcess(len(started) + 1))
        return started[-1]

    monkeypatch.setattr(SupervisedProcess, "start", start)
    return started


@pytest.fixture
async def start_set() -> AsyncIterator[Callable[..., ProcessSet]]:
    """Run a process set, and finish it after the test."""
    running: list[tuple[ProcessSet, asyncio.Task[None]]] = []

    def start(count: int, **options: Any) -> ProcessSet:
        process_set = ProcessSet(
            count, on_end=lambda _: None, on_start_failure=lambda _: None, **options
        )
        running.append((process_set, asyncio.create_task(process_set.run())))
        return process_set

    yield start
    for process_set, task in running:
        process_set.stop(FINISH)
        await task


async def test_a_replacement_that_is_not_ready_in_time_is_killed_and_retried(
    processes, start_set, monkeypatch, caplog
):
    caplog.set_level("INFO", "graphile_worker")
    pauses: list[int] = []

    def compute_no_backoff(quick_exits: int) -> float:
        pauses.append(quick_exits)
        return 0

    monkeypatch.setattr(process_set_module, "compute_backoff", compute_no_backoff)
    start_set(1, replacement_timeout_seconds=0.01)
    await wait_until(lambda: len(processes) == 1)
    old = processes[0]
    old.make_ready()
    old.make_due()

    await wait_until(lambda: len(processes) >= 4)

    assert all(each.is_killed for each in processes[1:3])
    assert not old.has_exited
    # The backoff grows.
    assert {0, 1, 2} <= set(pauses)
    assert "process 2 was not ready within 0.01 s, killing it" in caplog.text
    assert "starting another process in 0 s" in caplog.text


async def test_a_late_replacement_does_not_block_those_of_other_slots(
    processes, start_set, monkeypatch
):
    # No slot retries during the test.
    monkeypatch.setattr(process_set_module, "compute_backoff", lambda exits: 3600 * exits)
    start_set(2, replacement_timeout_seconds=0.01)
    await wait_until(lambda: len(processes) == 2)
    for each in processes:
        each.make_ready()
        each.make_due()

    await wait_until(lambda: len(processes) == 4)

    assert not any(each.has_exited for each in processes[:2])


async def test_a_replacement_takes_the_slot_when_the_old_process_exits_before_it_is_ready(
    processes, start_set
):
    process_set = start_set(1, replacement_timeout_seconds=3600)
    await wait_until(lambda: len(processes) == 1)
    old = processes[0]
    old.make_ready()
    old.make_due()
    await wait_until(lambda: len(processes) == 2)
    new = processes[1]

    old.exit()
    await wait_until(lambda: process_set.slots[0].child is new)

    assert not new.is_killed
