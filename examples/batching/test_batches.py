from datetime import UTC, datetime, timedelta

import pytest

from tasks import KEY, WINDOW, Reading, gather, note, store

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
READINGS = [Reading("kitchen", NOON, 21.5), Reading("attic", NOON, 30.1)]


@pytest.fixture
def stored(conn):
    """Return the sensors that have readings in the table."""
    return lambda: [
        sensor for (sensor,) in conn.execute("select sensor from readings order by sensor")
    ]


def test_readings_of_a_window_are_one_job(gw):
    counts = [note(reading) for reading in READINGS]

    assert counts == [1, 2]
    assert len(gw.enqueued()) == 1
    gw.assert_enqueued(gather.using(job_key=KEY, run_at=WINDOW))


def test_they_are_stored_together_when_the_window_ends(gw, stored):
    for minute in range(3):
        note(Reading("kitchen", NOON + timedelta(minutes=minute), 21.5))

    gw.drain()
    assert stored() == []

    gw.travel(WINDOW)
    drained = gw.drain()
    assert [job.task_identifier for job in drained] == ["gather", "store"]
    assert len(stored()) == 3


def test_only_readings_of_unknown_sensors_are_tried_again(conn, gw, stored):
    store.enqueue(READINGS)

    drained = gw.drain(raise_errors=False)

    assert stored() == ["kitchen"]
    assert "no sensor attic" in str(drained.errors[0][1])
    [left] = gw.assert_enqueued(store).payload
    assert left["sensor"] == "attic"

    conn.execute("insert into sensors values ('attic')")
    gw.travel(timedelta(minutes=1))
    gw.drain()
    assert stored() == ["attic", "kitchen"]


def test_what_is_tried_again_and_what_is_gathered_do_not_meet(gw):
    note(READINGS[1])
    gw.travel(WINDOW)
    gw.drain(raise_errors=False)

    note(READINGS[1])

    assert gw.assert_enqueued(store).attempts == 1
    assert len(gw.assert_enqueued(gather).payload) == 1


def test_a_reading_that_comes_twice_is_stored_once(gw, stored):
    store.enqueue([READINGS[0], READINGS[0]])
    store.enqueue([READINGS[0]])

    gw.drain()

    assert stored() == ["kitchen"]
