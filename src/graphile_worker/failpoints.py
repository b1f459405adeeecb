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

VARIABLE = "GRAPHILE_WORKER_FAILPOINTS"
LOG = "GRAPHILE_WORKER_FAILPOINTS_LOG"


class Place(NamedTuple):
    """The one place where a failpoint is, and what is so there."""

    module: str
    function: str
    what: str


PLACES: Mapping[str, Place] = {
    "before_claim": Place("worker/claims.py", "take", "jobs are about to be asked for"),
    "claim_sent": Place("worker/claims.py", "take", "they are locked; nobody here knows them yet"),
    "job_prefetched": Place("worker/shelf.py", "put", "they lie here, and none of them has begun"),
    "before_start": Place("worker/starts.py", "_note", "a recovered job begins; not written yet"),
    "task_started": Place("worker/worker.py", "_ended", "a task is about to be called"),
    "task_ended": Place("worker/worker.py", "_ended", "it has ended; nobody was told how"),
    "batch_waiting": Place("worker/batches.py", "run", "an ending waits for others"),
    "completing": Place("worker/settle.py", "_send", "completions are about to be written"),
    "completed": Place("worker/settle.py", "_send", "they are; nobody here has heard of it"),
    "failing": Place("worker/settle.py", "_send", "failures are about to be written"),
    "failed": Place("worker/settle.py", "_send", "they are; nobody here has heard of it"),
    "returning": Place("worker/settle.py", "_send", "jobs are about to be handed back"),
    "sweeping": Place("maintenance/recovery.py", "_sweep", "dead pools are swept; not committed"),
    "heartbeat": Place("maintenance/heartbeat.py", "_say_so", "a sign of life is about to be sent"),
    "cron_ticking": Place("cron/scheduler.py", "_send", "jobs of a minute are about to be added"),
    "migrating": Place("db/database.py", "_together", "a step of a migration; not committed"),
}


class FailpointError(ConnectionError):
    """What `raise` raises: taken for what it stands for, a connection that was lost."""


class _Armed(NamedTuple):
    act: Callable[[], None]
    at: int
    passages: Iterator[int]


def made_of(environment: Mapping[str, str]) -> Callable[[str], None]:
    """What a failpoint does in such an environment; raises if that cannot be understood."""
    text = environment.get(VARIABLE)
    if not text:
        return _pass
    armed = dict(_read(each) for each in text.split(","))
    log = environment.get(LOG)

    def pass_armed(name: str) -> None:
        point = armed.get(name)
        if point is None:
            return
        # Threads may come here at once: each gets a number of its own.
        number = next(point.passages)
        if log:
            _note(log, f"{name} {number} {os.getpid()}\n")
        if number == point.at:
            point.act()

    return pass_armed


def _pass(name: str) -> None:
    """Nobody wants anything to happen there."""


def _read(text: str) -> tuple[str, _Armed]:
    found = re.fullmatch(r"(\w+)=(\w+)(?::(\d+(?:\.\d+)?))?(?:@([1-9]\d*))?", text.strip())
    if found is None:
        raise _refusal(text, "expected name=action or name=action@n")
    name, action, seconds, at = found.groups()
    if name not in PLACES:
        raise _refusal(text, f"no failpoint is called {name!r}; known: {', '.join(PLACES)}")
    act = _action(action, seconds)
    if act is None:
        raise _refusal(text, "actions are kill, stop, raise and sleep:SECONDS")
    return name, _Armed(act, int(at or 1), itertools.count(1))


def _action(action: str, seconds: str | None) -> Callable[[], None] | None:
    if action == "sleep" and seconds is not None:
        return lambda: time.sleep(float(seconds))
    return _ACTIONS.get(action) if seconds is None else None


def _refusal(text: str, reason: str) -> ConfigurationError:
    return ConfigurationError(f"{VARIABLE}: {text!r}: {reason}")


def _note(path: str, line: str) -> None:
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
    raise FailpointError(f"{VARIABLE} asked for it")


_ACTIONS = {"kill": _kill, "stop": _stop, "raise": _raise}

failpoint = made_of(os.environ)
