"""Faults at failpoints: a process is killed, stopped or delayed, or an error is raised.

A program of a test calls `install_from_environment`. `FAILPOINTS` then contains `name=action`,
several separated by commas. Actions are `kill`, `stop` (SIGSTOP), `raise`, and `sleep:SECONDS`,
which blocks a thread. With `@n` the action happens at the n-th passage instead of the first. Each
passage of a failpoint that is listed there is first appended to the file `FAILPOINTS_LOG`, as a
line of name, number and process id.
"""

import itertools
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from graphile_worker._support.failpoints import install_hook

FAILPOINTS_VARIABLE = "FAILPOINTS"
LOG_VARIABLE = "FAILPOINTS_LOG"


class FailpointLocation(NamedTuple):
    """Where a failpoint is called, and what has happened by then."""

    module: str
    function: str
    description: str


FAILPOINTS: Mapping[str, FailpointLocation] = {
    name: FailpointLocation(*location)
    for name, location in {
        "before_claim": ("_worker/claimer.py", "_claim", "jobs are about to be claimed"),
        "claim_sent": ("_worker/claimer.py", "_claim", "jobs are locked, and not known here"),
        "job_prefetched": ("_worker/sources/buffer.py", "put", "jobs are buffered, not started"),
        "before_start": (
            "_worker/start_guard.py",
            "_record_start",
            "a recovered job starts; the start is not recorded",
        ),
        "task_started": ("_worker/worker.py", "_execute", "a task is about to be called"),
        "task_ended": ("_worker/worker.py", "_execute", "a task has ended; nothing is written"),
        "batch_waiting": (
            "_worker/completion_batcher.py",
            "run",
            "a completion waits for its batch",
        ),
        "completing": ("_worker/completer.py", "_send", "completions are about to be written"),
        "completed": ("_worker/completer.py", "_send", "completions are written"),
        "failing": ("_worker/completer.py", "_send", "failures are about to be written"),
        "failed": ("_worker/completer.py", "_send", "failures are written"),
        "releasing": ("_worker/completer.py", "_send", "jobs are about to be released"),
        "rescuing": ("_lease/rescuer.py", "_rescue", "jobs are recovered, not committed"),
        "heartbeat": (
            "_lease/heartbeat.py",
            "_send_heartbeat",
            "a heartbeat is about to be sent",
        ),
        "cron_ticking": (
            "_cron/scheduler.py",
            "_send_jobs",
            "the jobs of a minute are about to be added",
        ),
        "migrating": ("_db/database.py", "_run_atomic", "a migration step is not committed"),
    }.items()
}


class FailpointError(ConnectionError):
    """What `raise` raises; a worker handles it as a lost connection."""


class Fault(NamedTuple):
    """What happens at the n-th passage of a failpoint."""

    action: Callable[[], None]
    trigger_at: int
    passages: Iterator[int]


def install_from_environment() -> None:
    """Install the faults of this process's environment, if there are any."""
    if text := os.environ.get(FAILPOINTS_VARIABLE):
        install_hook(build_hook(text, os.environ.get(LOG_VARIABLE)))


def build_hook(text: str, log: str | None = None) -> Callable[[str], None]:
    """A hook for these faults; ValueError if one of them cannot be parsed."""
    faults = dict(_parse_fault(each) for each in text.split(","))

    def reach(name: str) -> None:
        fault = faults.get(name)
        if fault is None:
            return
        # Several threads may reach it at the same time: each gets its own number.
        number = next(fault.passages)
        if log:
            _append(log, f"{name} {number} {os.getpid()}\n")
        if number == fault.trigger_at:
            fault.action()

    return reach


def _parse_fault(text: str) -> tuple[str, Fault]:
    found = re.fullmatch(r"(\w+)=(\w+)(?::(\d+(?:\.\d+)?))?(?:@([1-9]\d*))?", text.strip())
    if found is None:
        raise ValueError(f"{text!r}: expected name=action or name=action@n")
    name, action, seconds, at = found.groups()
    if name not in FAILPOINTS:
        raise ValueError(f"{text!r}: unknown failpoint {name!r}; known: {', '.join(FAILPOINTS)}")
    act = _find_action(action, seconds)
    if act is None:
        raise ValueError(f"{text!r}: actions are kill, stop, raise and sleep:SECONDS")
    return name, Fault(act, int(at or 1), itertools.count(1))


def _find_action(action: str, seconds: str | None) -> Callable[[], None] | None:
    if action == "sleep" and seconds is not None:
        return lambda: time.sleep(float(seconds))
    return _ACTIONS.get(action) if seconds is None else None


def _append(path: str, line: str) -> None:
    # One write to a file opened for it: other processes write there too, and this one may be
    # killed next.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _raise() -> None:
    raise FailpointError(f"raised because of {FAILPOINTS_VARIABLE}")


_ACTIONS = {"kill": _kill, "stop": _stop, "raise": _raise}
