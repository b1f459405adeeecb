"""Sessions that take a step when the test lets them, and which of them waits for which."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import permutations
from typing import Any

import psycopg

from graphile_worker._db.sync import SyncPsycopgConnection
from graphile_worker._sql.identifiers import Schemas
from tests.support.sql import Sql

# Each number is the next step of that session.
Order = tuple[int, ...]
Act = Callable[[SyncPsycopgConnection], Any]

# Seconds. Only a bug takes longer, even on a busy machine.
PATIENCE = 20.0

BEGIN, STATEMENT, COMMIT = range(3)
STEPS = ("begin", "statement", "commit")

# Plans are made once, and a deadlock is noticed soon.
SETTINGS = "-c enable_bitmapscan=off -c plan_cache_mode=force_generic_plan -c deadlock_timeout=50ms"


class Session:
    """A connection in its own thread, so that it can wait while others continue."""

    def __init__(self, dsn: str, schemas: Schemas) -> None:
        self._raw = psycopg.connect(dsn, autocommit=True, prepare_threshold=1, options=SETTINGS)
        self._connection = SyncPsycopgConnection(self._raw, schemas)
        self._thread = ThreadPoolExecutor(1)
        self.pid = self._raw.info.backend_pid

    def start(self, act: Act) -> Future[Any]:
        return self._thread.submit(act, self._connection)

    def say(self, command: str) -> Future[Any]:
        # Not through a cursor, which takes three times as long.
        return self._thread.submit(self._raw.pgconn.exec_, command.encode())

    def close(self) -> None:
        self._thread.shutdown()
        self._raw.close()


@dataclass
class Played:
    """What came of a schedule: the answer or the error of each session, and what happened when."""

    answers: list[Any]
    errors: list[BaseException | None]
    trace: list[str] = field(default_factory=list)
    # The first step that could not be taken, as its session waited for another.
    impossible_at: int | None = None


class Stage:
    """Sessions on one database, and one that watches them."""

    def __init__(self, dsn: str, schema: str, count: int) -> None:
        self.watcher = Sql(dsn, schema)
        self.sessions = [Session(dsn, Schemas.from_names(schema)) for _ in range(count)]
        self._pids = [session.pid for session in self.sessions]

    def close(self) -> None:
        for session in self.sessions:
            session.close()
        self.watcher.close()

    def play(self, order: Order, acts: Sequence[Act]) -> Played:
        """Let the sessions take their steps in that order: begin, statement, commit.

        A session that waits takes its steps as soon as it can: then the order was impossible.
        """
        performance = _Performance(self, acts)
        for position, number in enumerate(order):
            if not performance.step(number):
                performance.note_impossible(position)
        return performance.end()

    def settled(self, number: int, future: Future[Any]) -> bool:
        """Whether the step is done; False if it waits for another of these sessions."""
        deadline = time.monotonic() + PATIENCE
        # Most statements end within this time, and need no question to the server.
        while not _is_done(future, within=0.004):
            if self._is_blocked(number):
                return False
            assert time.monotonic() < deadline, "neither done nor waiting for anybody"
        return True

    def _is_blocked(self, number: int) -> bool:
        blocked: bool = self.watcher.value(
            "select pg_blocking_pids($1) && $2::int[]", self._pids[number], self._pids
        )
        return blocked


def _is_done(future: Future[Any], *, within: float) -> bool:
    try:
        future.exception(within)
    except TimeoutError:
        return False
    return True


class _Performance:
    """One schedule under way."""

    def __init__(self, stage: Stage, acts: Sequence[Act]) -> None:
        self._stage = stage
        self._acts = acts
        self._next = [BEGIN] * len(acts)
        self._waiting: dict[int, Future[Any]] = {}
        # Steps that came too early for a session that waits.
        self._owed: list[int] = []
        self._played = Played([None] * len(acts), [None] * len(acts))

    def step(self, number: int) -> bool:
        """Take the next step of that session; False if it waits, and will take it later."""
        if number in self._waiting:
            self._owed.append(number)
            return False
        kind, self._next[number] = self._next[number], self._next[number] + 1
        session = self._stage.sessions[number]
        self._played.trace.append(f"{STEPS[kind]} {number + 1}")
        if kind == STATEMENT:
            future = session.start(self._acts[number])
        else:
            future = session.say("commit" if kind == COMMIT else "begin")
        self._wait_for(number, future)
        if kind == COMMIT:
            self._look_at_waiting()
        return True

    def note_impossible(self, position: int) -> None:
        if self._played.impossible_at is None:
            self._played.impossible_at = position

    def end(self) -> Played:
        """Wait for those who still wait: two for each other, until one of them gets an error."""
        deadline = time.monotonic() + PATIENCE
        while self._waiting:
            assert time.monotonic() < deadline, f"for ever: {self._played.trace}"
            self._look_at_waiting()
        return self._played

    def _wait_for(self, number: int, future: Future[Any]) -> None:
        if not self._stage.settled(number, future):
            self._waiting[number] = future
            self._played.trace.append(f"({number + 1} waits)")
            return
        if self._next[number] == COMMIT:
            self._keep(number, future)
        else:
            future.result()

    def _keep(self, number: int, future: Future[Any]) -> None:
        self._played.errors[number] = future.exception()
        if self._played.errors[number] is None:
            self._played.answers[number] = future.result()

    def _look_at_waiting(self) -> None:
        """Let sessions without a blocker proceed, and take the steps that they missed."""
        for number in list(self._waiting):
            if number not in self._waiting:
                continue
            future = self._waiting[number]
            if not self._stage.settled(number, future):
                continue
            del self._waiting[number]
            self._played.trace.append(f"({number + 1} proceeds)")
            self._keep(number, future)
            if number in self._owed:
                self._owed.remove(number)
                self.step(number)


@cache
def all_orders(sessions: int) -> tuple[Order, ...]:
    """Return all orders in which `count` sessions can begin, run their statement and commit."""
    return tuple(_orders((3,) * sessions))


@cache
def orders(sessions: int) -> tuple[Order, ...]:
    """All orders of statements and commits; each session begins right before its statement.

    To begin takes no lock and no snapshot: when a session did matters only to its idea of now.
    """
    return tuple(_begun_late(order) for order in _orders((2,) * sessions))


def one_after_the_other(sessions: int) -> list[Order]:
    return [_thrice(order) for order in permutations(range(sessions))]


def _orders(left: tuple[int, ...]) -> Iterator[Order]:
    if not any(left):
        yield ()
    for number, count in enumerate(left):
        if count:
            fewer = (*left[:number], count - 1, *left[number + 1 :])
            for rest in _orders(fewer):
                yield (number, *rest)


def _begun_late(order: Order) -> Order:
    begun: set[int] = set()
    steps: list[int] = []
    for number in order:
        steps += [number] if number in begun else [number, number]
        begun.add(number)
    return tuple(steps)


def _thrice(order: Order) -> Order:
    return tuple(number for number in order for _ in STEPS)
