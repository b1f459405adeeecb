import pytest

from limits import EXHAUSTED
from tasks import STRIPE, charge, send_receipt


@pytest.fixture
def conn(conn):
    """With a window that no test outlasts."""
    conn.execute("update tokens set per = '1 hour', free_at = '-infinity'")
    return conn


def calls(conn):
    [count] = conn.execute("select count(*) from calls").fetchone()
    return count


def add_charges(count):
    for order_id in range(count):
        charge.using(flags=[STRIPE]).enqueue(order_id)


def test_a_call_without_a_token_waits_and_loses_no_attempt(conn, gw):
    before = calls(conn)
    add_charges(4)

    gw.drain()

    assert calls(conn) == before + 3
    assert gw.assert_enqueued(charge).attempts == 0


def test_it_is_made_when_a_token_is_free_again(conn, gw):
    add_charges(4)
    gw.drain()
    before = calls(conn)

    conn.execute("update tokens set free_at = '-infinity'")
    gw.drain(include_delayed=True)

    assert calls(conn) == before + 1


def test_the_flag_is_forbidden_while_no_token_is_free(conn, gw):
    assert conn.execute(EXHAUSTED).fetchall() == []

    add_charges(3)
    gw.drain()

    assert conn.execute(EXHAUSTED).fetchall() == [(STRIPE,)]


def test_other_jobs_need_no_token(conn, gw):
    conn.execute("update tokens set free_at = 'infinity'")
    add_charges(1)
    send_receipt.enqueue(7)

    assert [job.task_identifier for job in gw.drain()].count("send_receipt") == 1
    gw.assert_not_enqueued(send_receipt)


def test_a_flag_without_tokens_is_an_error(conn, gw):
    conn.execute("delete from tokens")
    add_charges(1)

    with pytest.raises(LookupError, match="no tokens for api:stripe"):
        gw.drain()
