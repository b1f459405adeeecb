"""Another server takes over, or one that takes no writes answers: workers find where to work."""

import re
import time
from collections.abc import Iterator

import psycopg
import pytest

from graphile_worker import Client, sync
from tests.chaos.field import FIRST_JOB_WITHIN, Adder, Field, field_on, ran
from tests.conftest import TestDatabase
from tests.laboratory.servers import Pair, Server
from tests.support.processes import Program, eventually
from tests.support.proxy import Proxy
from tests.support.tiers import size

pytestmark = [pytest.mark.single_version, pytest.mark.timeout(120)]

# Seconds from the database's return to the first job.
SOON = size(**FIRST_JOB_WITHIN)

# A worker gives its jobs up a sixth of its lease before another takes them. In the gate that is
# 2.5 s, more than a busy machine delays one process.
LEASE = size(gate="15s", nightly="3s")


@pytest.fixture
def pair(pytestconfig) -> Iterator[Pair]:
    with Pair(pytestconfig.getoption("--pg"), ["log_connections=on"]) as pair:
        yield pair


@pytest.fixture
def field(pair, schema, tmp_path) -> Iterator[Field]:
    with field_on(pair, schema, tmp_path) as field:
        # From here on the standby has all that was acknowledged; it shows the new database, too.
        pair.synchronize()
        yield field


def test_workers_follow_a_synchronous_failover_and_lose_no_acknowledged_job(field, pair, figure):
    workers = [field.start("-j", "5", "--lease-duration", "8s") for _ in range(2)]
    with Adder(field.database) as adder:
        adder.wait_for_more(100)
        promotion = pair.promote()
        seconds = field.seconds_to_the_next_job(*workers)
        adder.wait_for_more(50)

    field.wait_for_these(adder.acked, *workers)
    figure(
        f"standby promoted in {promotion.ended - promotion.began:.2f} s: "
        f"first job {seconds:.2f} s later"
    )
    assert seconds < SOON
    assert adder.unsure, "it was added to all the time"
    field.check_alive(*workers)


def refusals(server: Server) -> int:
    """How often it was asked for what a standby cannot do."""
    said = server.log.read_text()
    return said.count("in a read-only transaction") + said.count("during recovery")


def visits(server: Server) -> int:
    return server.log.read_text().count("connection authorized")


def address(proxy: Proxy, field: Field) -> str:
    """One that any server may stand behind, without a word about which to look for."""
    return f"postgres://postgres@127.0.0.1:{proxy.port}/{field.database.name}"


def test_a_worker_on_a_read_only_standby_logs_the_reason_and_exits(field, pair):
    worker = field.command(DATABASE_URL=pair.standby.url(field.database.name))

    assert worker.end() == 1
    assert "cannot execute INSERT in a read-only transaction" in worker.err
    assert refusals(pair.standby) == 1


def test_a_worker_backs_off_from_a_demoted_server_and_follows_its_address(field, pair, figure):
    with Proxy(pair.primary.port) as proxy:
        worker = field.start("-j", "5", DATABASE_URL=address(proxy, field))
        field.add(20, queues=5)
        field.wait_for_all(worker)

        pair.promote()
        pair.rebuild_standby()
        # What was the primary is a standby now, and the address still leads there.
        eventually(lambda: refusals(pair.standby) > 0, "the standby rejects it")
        began, asked, came = time.monotonic(), refusals(pair.standby), visits(pair.standby)
        eventually(lambda: refusals(pair.standby) > asked + 10, "it asks again")
        seconds = time.monotonic() - began
        rates = (
            (refusals(pair.standby) - asked) / seconds,
            (visits(pair.standby) - came) / seconds,
        )

        field.add(20, queues=5)
        proxy.target = pair.primary.port
        # None of its connections to the standby was cut.
        first = field.seconds_to_the_next_job(worker)
        field.wait_for_all(worker)

    figure(
        f"on a standby: {rates[0]:.1f} refusals and {rates[1]:.1f} connections a second, "
        f"first job {first:.2f} s after its address led elsewhere"
    )
    assert max(rates) < 10
    assert first < SOON
    field.check_alive(worker)


async def test_a_client_that_a_standby_rejected_follows_its_address(field, pair):
    schema = field.database.schema
    with Proxy(pair.standby.port) as proxy, sync.Client(address(proxy, field), schema=schema) as a:
        async with Client(address(proxy, field), schema=schema) as b:
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                a.add_job("note", {"n": 0})
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                await b.add_job("note", {"n": 0})

            proxy.target = pair.primary.port

            a.add_job("note", {"n": 1})
            await b.add_job("note", {"n": 2})

    worker = field.start()
    field.wait_for_these({1, 2}, worker)
    assert 0 not in ran(worker)
    field.check_alive(worker)


def divide(pair: Pair) -> None:
    """Promote the standby while its primary keeps running with open sessions."""
    old, new = pair.primary, pair.standby
    new.set(synchronous_standby_names="", synchronous_commit="on")
    assert new.value("select pg_promote(true, 60)")
    pair.primary, pair.standby = new, old


def moment(worker: Program, what: str) -> float:
    """Return when a waiting task printed this word, on a clock that all processes share."""
    pattern = re.compile(rf"^{what} at ([\d.]+)$", re.M)
    eventually(lambda: pattern.search(worker.out), f"{what}: {worker.err}")
    return float(pattern.findall(worker.out)[0])


def test_a_worker_on_the_old_primary_abandons_its_job_before_one_on_the_new_runs_it(
    field, pair, figure
):
    left = field.start("--lease-duration", LEASE)
    field.add(1, "stay")
    moment(left, "began 0")

    divide(pair)
    on_new = TestDatabase(field.database.name, pair.primary, field.database.schema)
    other = field.start("--lease-duration", LEASE, DATABASE_URL=on_new.url)
    # The old primary waits for a standby that it has lost, so it acknowledges nothing any more.
    gave_up, began = moment(left, "cancelled 0"), moment(other, "began 0")
    with Adder(on_new) as adder:
        adder.wait_for_more(20)
    field.let_go_on()
    field.wait_for(0, other)
    assert other.stop() == 0

    # An operator makes the old primary a standby of the new.
    pair.rebuild_standby()
    seconds = field.seconds_to_the_next_job(left)

    field.wait_for_these(adder.acked, left, other)
    figure(
        f"old primary beside the new: jobs given up {began - gave_up:.2f} s before they ran there, "
        f"first job {seconds:.2f} s after it had become a standby"
    )
    assert gave_up < began
    assert 0 not in ran(left)
    assert seconds < SOON
    field.check_alive(left)
