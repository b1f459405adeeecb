"""Failpoints: places where a test may let this process die, stand still or fail.

`GRAPHILE_WORKER_FAILPOINTS`, read when this is imported, says where and how: `name=action`, several
with commas between them. Actions are `kill`, `stop` (a SIGSTOP), `raise` and `sleep:SECONDS`, which
keeps a whole thread waiting. With `@n` they happen at the n-th passage instead of the first. Each
passage of a place that is named there is noted first, as a line of name, number and process id, in
the file that `GRAPHILE_WORKER_FAILPOINTS_LOG` names.

Without that variable a failpoint is a call that does nothing.
"""

import itertools
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from graphile_worker.errors import ConfigurationError

FAILPOINTS_VARIABLE = "GRAPHILE_WORKER_FAILPOINTS"
LOG_VARIABLE = "GRAPHILE_WORKER_FAILPOINTS_LOG"


class FailpointLocation(NamedTuple):
    """The one place where a failpoint is, and what is so there."""

    module: str
    function: str
    description: str


FAILPOINTS: Mapping[str, FailpointLocation] = {
    "before_claim": FailpointLocation(
        "_worker/claimer.py", "claim", "jobs are about to be asked for"
    ),
    "claim_sent": FailpointLocation(
        "_worker/claimer.py", "claim", "they are locked; nobody here knows them yet"
    ),
    "job_prefetched": FailpointLocation(
        "_worker/sources/buffer.py", "put", "they lie here, and none of them has begun"
    ),
    "before_start": FailpointLocation(
        "_worker/start_guard.py", "_record_start", "a recovered job begins; not written yet"
    ),
    "task_started": FailpointLocation(
        "_worker/worker.py", "_execute", "a task is about to be called"
    ),
    "task_ended": FailpointLocation(
        "_worker/worker.py", "_execute", "it has ended; nobody was told how"
    ),
    "batch_waiting": FailpointLocation(
        "_worker/completion_batcher.py", "run", "an ending waits for others"
    ),
    "completing": FailpointLocation(
        "_worker/completer.py", "_send", "completions are about to be written"
    ),
    "completed": FailpointLocation(
        "_worker/completer.py", "_send", "they are; nobody here has heard of it"
    ),
    "failing": FailpointLocation(
        "_worker/completer.py", "_send", "failures are about to be written"
    ),
    "failed": FailpointLocation(
        "_worker/completer.py", "_send", "they are; nobody here has heard of it"
    ),
    "returning": FailpointLocation(
        "_worker/completer.py", "_send", "jobs are about to be handed back"
    ),
    "sweeping": FailpointLocation(
        "_lease/rescuer.py", "_rescue", "dead pools are swept; not committed"
    ),
    "heartbeat": FailpointLocation(
        "_lease/heartbeat.py", "_send_heartbeat", "a sign of life is about to be sent"
    ),
    "cron_ticking": FailpointLocation(
        "_cron/scheduler.py", "_send_jobs", "jobs of a minute are about to be added"
    ),
    "migrating": FailpointLocation(
        "_db/database.py", "_run_atomic", "a step of a migration; not committed"
    ),
}


class FailpointError(ConnectionError):
    """What `raise` raises: taken for what it stands for, a connection that was lost."""


class _ArmedFailpoint(NamedTuple):
    action: Callable[[], None]
    trigger_at: int
    counter: Iterator[int]


def build_failpoint(environment: Mapping[str, str]) -> Callable[[str], None]:
    """What a failpoint does in such an environment; raises if that cannot be understood."""
    text = environment.get(FAILPOINTS_VARIABLE)
    if not text:
        return _do_nothing
    armed = dict(_parse_failpoint(each) for each in text.split(","))
    log = environment.get(LOG_VARIABLE)

    def pass_armed(name: str) -> None:
        point = armed.get(name)
        if point is None:
            return
        # Threads may come here at once: each gets a number of its own.
        number = next(point.counter)
        if log:
            _log_passage(log, f"{name} {number} {os.getpid()}\n")
        if number == point.trigger_at:
            point.action()

    return pass_armed


def _do_nothing(name: str) -> None:
    """Nobody wants anything to happen there."""


def _parse_failpoint(text: str) -> tuple[str, _ArmedFailpoint]:
    found = re.fullmatch(r"(\w+)=(\w+)(?::(\d+(?:\.\d+)?))?(?:@([1-9]\d*))?", text.strip())
    if found is None:
        raise _build_error(text, "expected name=action or name=action@n")
    name, action, seconds, at = found.groups()
    if name not in FAILPOINTS:
        raise _build_error(text, f"no failpoint is called {name!r}; known: {', '.join(FAILPOINTS)}")
    act = _find_action(action, seconds)
    if act is None:
        raise _build_error(text, "actions are kill, stop, raise and sleep:SECONDS")
    return name, _ArmedFailpoint(act, int(at or 1), itertools.count(1))


def _find_action(action: str, seconds: str | None) -> Callable[[], None] | None:
    if action == "sleep" and seconds is not None:
        return lambda: time.sleep(float(seconds))
    return _ACTIONS.get(action) if seconds is None else None


def _build_error(text: str, reason: str) -> ConfigurationError:
    return ConfigurationError(f"{FAILPOINTS_VARIABLE}: {text!r}: {reason}")


def _log_passage(path: str, line: str) -> None:
    # Opened each time and written at once: others write there too, and this may be the end.
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
    raise FailpointError(f"{FAILPOINTS_VARIABLE} asked for it")


_ACTIONS = {"kill": _kill, "stop": _stop, "raise": _raise}

failpoint = build_failpoint(os.environ)
