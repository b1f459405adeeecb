"""How a program is told what to do, and how it says what it did."""

import json
import os
import resource
import time


def dsn() -> str:
    return os.environ["BENCH_DSN"]


def number(name: str) -> int:
    return int(os.environ[f"BENCH_{name.upper()}"])


def say(**facts: object) -> None:
    os.write(1, json.dumps(facts).encode() + b"\n")


def say_late(sent: int) -> None:
    """How long ago that was, by the clock that all programs of a machine share."""
    say(late=time.monotonic_ns() - sent)


class Counter:
    """Counts jobs; says when the first began, with the CPU time until then, and when the last."""

    def __init__(self) -> None:
        self._jobs = number("jobs")
        self._ran = 0

    def count(self) -> None:
        self._ran += 1
        if self._ran == 1:
            say(first=time.monotonic_ns(), cpu=cpu_seconds())
        elif self._ran == self._jobs:
            say(last=time.monotonic_ns())


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
