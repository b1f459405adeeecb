"""What a parent of worker processes decides, without any process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from graphile_worker._cli.supervisor.process_set import Slot, compute_backoff
from graphile_worker._cli.supervisor.supervised_process import build_child_command
from graphile_worker._support import rss
from graphile_worker._support.rss import read_resident_bytes


class Served:
    """A child that served for so long."""

    def __init__(self, seconds: float, *, was_ready: bool = True) -> None:
        self.seconds_served = seconds
        self.was_ready = was_ready


def noted(*children: Served) -> Slot:
    place = Slot()
    for child in children:
        place.record_exit(child)  # type: ignore[arg-type]
    return place


def test_the_pause_doubles_up_to_half_a_minute():
    pauses = [compute_backoff(number) for number in range(10)]

    assert pauses == [0, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert compute_backoff(1_000_000) == 30


def test_lives_are_counted_while_they_are_short():
    assert noted(Served(1), Served(9)).quick_exits == 2
    assert noted(Served(1), Served(11)).quick_exits == 0
    assert noted(Served(1), Served(11), Served(1)).quick_exits == 1


def test_starts_are_counted_while_they_fail():
    failed, worked = Served(1, was_ready=False), Served(1)

    assert noted(failed, failed).failed_starts == 2
    assert noted(failed, worked).failed_starts == 0


@pytest.mark.parametrize(
    ("before", "flags"),
    [
        (["/usr/bin/graphile-worker"], ["-p", "2", "--once"]),
        (["-W", "error", "-m", "graphile_worker"], ["-p2"]),
        (["-m", "graphile_worker"], ["-p", "2", "--"]),
    ],
)
def test_a_child_is_started_like_its_parent(monkeypatch, before, flags):
    monkeypatch.setattr(sys, "orig_argv", ["python", *before, *flags])
    monkeypatch.setattr(sys, "argv", ["anything", *flags])

    assert build_child_command(5) == [sys.executable, *before, "--parent=5", *flags]


def test_the_memory_of_a_process_is_read():
    held = read_resident_bytes(os.getpid())

    assert held is not None
    assert held > 10 * 1024 * 1024


def test_where_there_is_no_proc_ps_says_it(monkeypatch):
    exact = read_resident_bytes(os.getpid())
    monkeypatch.setattr(rss, "Path", lambda path: Path("/nowhere"))
    told = f"{(exact or 0) // 1024}\n"
    monkeypatch.setattr(
        subprocess, "run", lambda *args, **more: subprocess.CompletedProcess(args, 0, stdout=told)
    )

    assert read_resident_bytes(os.getpid()) == pytest.approx(exact, abs=1024)


def test_where_nobody_says_it_the_memory_is_unknown(monkeypatch):
    monkeypatch.setattr(rss, "Path", lambda path: Path("/nowhere"))
    monkeypatch.setenv("PATH", "/nowhere")

    assert read_resident_bytes(os.getpid()) is None


def test_the_memory_of_a_process_that_is_gone_is_unknown():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()

    assert read_resident_bytes(gone.pid) is None
