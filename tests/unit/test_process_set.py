"""The decisions of the parent of worker processes, without processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from graphile_worker._cli.supervisor.process_set import Slot, compute_backoff
from graphile_worker._cli.supervisor.supervised_process import build_child_command
from graphile_worker._support import rss
from graphile_worker._support.rss import read_resident_bytes


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
