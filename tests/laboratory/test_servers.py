"""The servers of the laboratory: what they acknowledged survives a fault, or is known as lost."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import psycopg
import pytest

from tests.laboratory.servers import Pair, Position, Primary
from tests.support.processes import eventually
from tests.support.proxy import Proxy

pytestmark = [pytest.mark.single_version, pytest.mark.timeout(120)]


@dataclass(frozen=True)
class Row:
    """One that was acknowledged, and between which points of the log its commit lies."""

    number: int
    after: Position
    before: Position


class Writer:
    """Adds one row after another beside the test, over any fault, and knows what is sure."""

    def __init__(self, dsn: str) -> None:
        self.acked: list[Row] = []
        self.unsure: list[int] = []
        self._dsn = dsn
        self._number = 0
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._is_stopping.set()
        self._thread.join(40)
        assert not self._thread.is_alive()

    def wait_for_more(self, count: int) -> None:
        wanted = len(self.acked) + count
        eventually(lambda: len(self.acked) >= wanted, f"{count} more rows are acknowledged")

    @property
    def numbers(self) -> set[int]:
        return {row.number for row in self.acked}

    def _write(self) -> None:
        while not self._is_stopping.is_set():
            try:
                with psycopg.connect(self._dsn, connect_timeout=5, autocommit=True) as connection:
                    while not self._is_stopping.is_set():
                        self._write_one(connection)
            except psycopg.OperationalError:
                # Until the server is back, or another has taken over.
                time.sleep(0.02)

    def _write_one(self, connection: psycopg.Connection) -> None:
        self._number += 1
        self.unsure.append(self._number)
        with connection.transaction():
            connection.execute("insert into rows values (%s)", [self._number])
            after = _position(connection)
        before = _position(connection)
        self.unsure.remove(self._number)
        self.acked.append(Row(self._number, after, before))


def _position(connection: psycopg.Connection) -> Position:
    row = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return Position.parse(row[0])


@pytest.fixture
def pair(pytestconfig) -> Iterator[Pair]:
    with Pair(pytestconfig.getoption("--pg")) as pair:
        pair.primary.run("create table rows (number int primary key)")
        yield pair


@pytest.fixture
def alone(pytestconfig) -> Iterator[Primary]:
    with Primary(pytestconfig.getoption("--pg")) as alone:
        alone.primary.run("create table rows (number int primary key)")
        yield alone


def present(servers: Primary) -> set[int]:
    return {number for (number,) in servers.primary.run("select number from rows")}


def test_a_crash_keeps_acknowledged_commits(alone):
    with Writer(alone.dsn()) as writer:
        for restart in (alone.crash_restart, alone.fast_restart, alone.crash_restart):
            writer.wait_for_more(50)
            restart()
        writer.wait_for_more(50)

    assert writer.numbers <= present(alone) <= writer.numbers | set(writer.unsure)


def test_a_synchronous_promotion_loses_no_acknowledged_commit(pair, figure):
    pair.synchronize()
    with Writer(pair.dsn()) as writer:
        writer.wait_for_more(200)
        promotion = pair.promote()
        writer.wait_for_more(10)

    assert writer.numbers <= present(pair) <= writer.numbers | set(writer.unsure)
    assert promotion.timeline == 2
    figure(f"promoted in {promotion.ended - promotion.began:.2f} s")


def test_one_address_serves_over_three_promotions_in_a_row(pair, figure):
    pair.synchronize("remote_apply")
    seconds = []
    with Writer(pair.dsn()) as writer:
        for number in range(3):
            writer.wait_for_more(100)
            began = time.monotonic()
            assert pair.promote().timeline == number + 2
            pair.rebuild_standby()
            seconds.append(time.monotonic() - began)
        assert pair.is_synchronous
        writer.wait_for_more(100)

    assert writer.numbers <= present(pair)
    figure(f"promoted and a new standby built in {max(seconds):.2f} s at most")


def test_a_promotion_with_a_lost_tail_loses_the_commits_after_the_replayed_position(pair):
    pair.synchronize()
    with Writer(pair.dsn()) as writer:
        writer.wait_for_more(100)

        def write_on() -> None:
            writer.wait_for_more(100)
            writer.stop()

        promotion = pair.promote_with_lost_tail(write_on)

    there = present(pair)
    sure = {row.number for row in writer.acked if row.before <= promotion.replayed}
    lost = {row.number for row in writer.acked if promotion.replayed <= row.after}
    assert len(sure) >= 100
    assert len(lost) >= 99
    # One may have been under way between the two looks at the log.
    assert len(writer.numbers - sure - lost) <= 1
    assert sure <= there
    assert not lost & there

    pair.rebuild_standby()
    pair.synchronize()
    with Writer(pair.dsn()) as writer:
        pass


def test_commits_while_the_standby_is_detached_are_lost(pair):
    pair.primary.run("insert into rows select generate_series(1, 100)")
    detached = pair.detach_standby()
    pair.primary.run("insert into rows select generate_series(101, 200)")

    promotion = pair.promote()

    assert present(pair) == set(range(1, 101))
    assert detached <= promotion.replayed
    assert promotion.last_commit is not None


def test_a_commit_waits_for_a_synchronous_standby_that_is_unreachable(pair):
    pair.synchronize()
    pair.standby.crash()
    with Writer(pair.dsn()) as writer:
        waits = "select true from pg_stat_activity where wait_event = 'SyncRep'"
        eventually(lambda: pair.primary.run(waits), "the commit waits")
        assert writer.acked == []

        pair.standby.launch()
        writer.wait_for_more(10)


def test_a_standby_catches_up_with_a_primary_that_crashed(pair):
    pair.synchronize()
    with Writer(pair.dsn()) as writer:
        writer.wait_for_more(50)
        pair.crash_restart(away=0.5)
        writer.wait_for_more(50)
        pair.promote()

    assert writer.numbers <= present(pair)


def test_both_servers_can_be_behind_proxies(pair):
    first, second = pair.primary.port, pair.standby.port
    with Proxy(first) as before_first, Proxy(second) as before_second:
        dsn = pair.dsn(ports=[before_first.port, before_second.port])
        pair.synchronize()
        with Writer(dsn) as writer:
            writer.wait_for_more(20)
            pair.promote()
            writer.wait_for_more(20)
            assert before_second.connections

    assert writer.numbers <= present(pair)


def test_nothing_is_left_when_the_servers_end(pytestconfig):
    pair = Pair(pytestconfig.getoption("--pg"))
    servers = [pair.primary, pair.standby]

    with pytest.raises(psycopg.errors.UndefinedTable), pair:
        pair.primary.run("select from rows")

    assert not any(server.is_running for server in servers)
    assert not any(server.log.parent.exists() for server in servers)
