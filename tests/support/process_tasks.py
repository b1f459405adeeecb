"""Tasks that run in processes, and misbehave there; a process imports this module by its name."""

import asyncio
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from graphile_worker import Backoff, Discard, Job, PartialFailure, Retry, Snooze, TaskRouter

tasks = TaskRouter[Any]()
calls = 0

SOON = timedelta(seconds=2)


def note(path: str, *words: object) -> None:
    """One line more in a file, for the test to read."""
    with Path(path).open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


@tasks.task(run_in="process")
def where(path: str) -> None:
    global calls
    calls += 1
    note(path, os.getpid(), os.getppid(), calls, "pytest" in sys.modules)


@tasks.task(run_in="process")
async def awaits(path: str) -> None:
    await asyncio.sleep(0)
    note(path, os.getpid())


@tasks.task(run_in="process")
def whole(payload: dict[str, Any], /) -> None:
    note(payload["path"], payload)


@tasks.task(run_in="process")
def speaks(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stderr.write(f"{text}\n")


def policy(error: BaseException, job: Job) -> timedelta | None:
    return timedelta(hours=job.attempts) if isinstance(error, KeyError) else None


@tasks.task(run_in="process")
def raises() -> None:
    raise LookupError("nothing there")


@tasks.task(run_in="process", retry=policy)
def by_policy(key: bool) -> None:
    raise KeyError("k") if key else LookupError("other")


@tasks.task(run_in="process", retry=Backoff(give_up_on=(LookupError,)))
def gives_up() -> None:
    raise LookupError("for good")


@tasks.task(run_in="process")
def says(what: str) -> None:
    if what == "retry":
        raise Retry(timedelta(hours=2), reason="not yet")
    if what == "snooze":
        raise Snooze(timedelta(hours=3))
    if what == "subclass":
        raise Gone("away")
    if what == "error":
        raise Discard(LookupError("no such row"))  # type: ignore[arg-type]  # a common mistake
    if what == "blank":
        raise Blank
    raise Discard("no use")


class Gone(Discard):
    """An outcome of this module."""


class Blank(Retry):
    """Has no delay, because it does not call the base class."""

    def __init__(self) -> None:
        self.reason = "blank"


@tasks.batch_task(run_in="process")
def numbers(items: list[int]) -> list[BaseException | None]:
    return [ValueError(f"{each} is odd") if each % 2 else None for each in items]


@tasks.batch_task(run_in="process")
def some_numbers(items: list[int]) -> None:
    raise PartialFailure({0: ValueError("the first")})


@tasks.task(run_in="process", timeout=SOON)
def loops_for_ever(path: str) -> None:
    note(path, os.getpid())
    while True:
        pass


@tasks.task(run_in="process")
def waits_for_ever(path: str) -> None:
    note(path, os.getpid())
    while True:
        time.sleep(1)


@tasks.task(run_in="process")
def eats_memory() -> None:
    eaten = []
    while True:
        eaten.append(bytes(10_000_000))


@tasks.task(run_in="process")
def keeps_memory(path: str, megabytes: int) -> None:
    global kept
    kept = os.urandom(1_000_000) * megabytes
    note(path, os.getpid())


kept = b""


@tasks.task(run_in="process", timeout=SOON)
def forks_and_waits(path: str) -> None:
    for _ in range(3):
        if os.fork() == 0:
            note(path, os.getpid())
            time.sleep(600)
    children = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
    for child in children:
        note(path, child.pid)
    children[0].wait()


@tasks.task(run_in="process")
def leaves_processes(path: str) -> None:
    for _ in range(3):
        note(path, subprocess.Popen(["sleep", "600"]).pid)


@tasks.task(run_in="process")
def lets_a_copy_return(path: str) -> None:
    if os.fork():
        os.wait()
    note(path, os.getpid())


@tasks.task(run_in="process")
def aborts() -> None:
    sys.stdout.write("the last words")
    os.abort()


@tasks.task(run_in="process")
def exits() -> None:
    os._exit(3)


@tasks.task(run_in="process")
def closes_everything() -> None:
    os.closerange(3, 256)


@tasks.task(run_in="process")
def asks_to_end_the_program() -> None:
    sys.exit("enough")


def plain(path: str) -> None:
    note(path, os.getpid())
