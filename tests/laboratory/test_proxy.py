"""The network of the laboratory: what a client sees, and what the server really did."""

import socket
import struct
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from tests.support.processes import eventually
from tests.support.proxy import (
    Bandwidth,
    Blackhole,
    Connection,
    CutAfterRequest,
    CutInReply,
    CutInRequest,
    Delay,
    HalfOpen,
    Mode,
    OneWay,
    Proxy,
    Reset,
    Stall,
    by_application_name,
)
from tests.support.wire import Answer, Conversation

# Seconds without bytes after which an answer counts as lost.
SILENCE = 0.3


class Site:
    """A database behind the proxy, and a table that is looked at past the proxy."""

    def __init__(self, cluster, database: str, proxy: Proxy) -> None:
        self.proxy = proxy
        self._database = database
        self._direct = psycopg.connect(cluster.dsn(database), autocommit=True)
        self._direct.execute("create table notes (word text)")

    def connect(self, name: str = "tester", **more) -> psycopg.Connection:
        more = {"autocommit": True, "connect_timeout": 10, **more}
        return psycopg.connect(
            host="127.0.0.1",
            port=self.proxy.port,
            user="postgres",
            dbname=self._database,
            application_name=name,
            **more,
        )

    def words(self) -> list[str]:
        return [word for (word,) in self._direct.execute("select word from notes order by 1")]

    def locks(self) -> int:
        """Sessions of clients that hold a lock on the table."""
        return self._direct.execute(
            "select distinct pid from pg_locks where relation = 'notes'::regclass "
            "and pid <> pg_backend_pid()"
        ).rowcount

    def sessions(self) -> int:
        return self._direct.execute(
            "select from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid()"
        ).rowcount

    def wait_until_asleep(self, connection: psycopg.Connection) -> None:
        """Wait until the server executes a long request of this connection."""
        asleep = "select from pg_stat_activity where wait_event = 'PgSleep' and pid = %s"
        backend = connection.info.backend_pid
        eventually(lambda: self._direct.execute(asleep, [backend]).rowcount, "it is asked")

    def close(self) -> None:
        self._direct.close()


@pytest.fixture
def site(empty_database, proxy) -> Iterator[Site]:
    site = Site(empty_database.cluster, empty_database.name, proxy)
    yield site
    site.close()


class Asking:
    """A query in another thread."""

    def __init__(self, connection: psycopg.Connection, statement: bytes = b"select 1") -> None:
        self.rows: list | None = None
        self.error: Exception | None = None
        self._connection = connection
        self._statement = statement
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        try:
            cursor = self._connection.execute(self._statement)
            self.rows = cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            self.error = error

    def is_silent(self) -> bool:
        self._thread.join(SILENCE)
        return self._thread.is_alive()

    def end(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()


def of(connection: psycopg.Connection):
    """The proxy's view of this connection alone."""
    backend = connection.info.backend_pid
    return lambda each: each.backend == backend


def message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def first_message(code: int, body: bytes = b"") -> bytes:
    return struct.pack("!II", len(body) + 8, code) + body


def spoken(step: int) -> tuple[Conversation, list[Answer]]:
    """Return what the proxy knows of a conversation that comes in chunks of this size."""
    login = first_message(196608, b"user\0me\0application_name\0some one\0\0")
    parse = message(b"P", b"s1\0delete from notes\0\0\0") + message(b"S")
    bind = message(b"B", b"\0s1\0" + b"\0\0\0\1\0\1\0\1\0\0" + bytes(70_000))
    ready = message(b"Z", b"I")
    turns = [
        (first_message(80877103), b"N"),
        (login, message(b"R", bytes(4)) + message(b"K", struct.pack("!II", 77, 1)) + ready),
        (parse, message(b"1") + ready),
        (message(b"Q", b"begin\0"), message(b"C", b"BEGIN\0") + message(b"Z", b"T")),
        (bind + message(b"E", bytes(5)) + message(b"S"), message(b"2") + message(b"Z", b"T")),
        (message(b"Q", b"commit\0"), message(b"C", b"COMMIT\0") + ready),
        (message(b"Q", b"select 1 / 0\0"), message(b"E", b"SERROR\0\0") + ready),
        (message(b"Q", b"rollback\0"), message(b"C", b"ROLLBACK\0") + ready),
    ]
    conversation, answers = Conversation(), []
    for request, reply in turns:
        for start in range(0, len(request), step):
            conversation.request(request[start : start + step])
        assert conversation.is_waiting == (request[:1] != b"\0" or request is login)
        for start in range(0, len(reply), step):
            answers += conversation.reply(reply[start : start + step])
        assert not conversation.is_waiting
    return conversation, answers


@pytest.mark.parametrize("step", [1, 3, 7, 65_536, 1_000_000])
def test_a_conversation_is_parsed_for_any_size_of_chunks(step):
    conversation, answers = spoken(step)

    talk = conversation.talk
    assert (talk.user, talk.application_name, talk.backend) == ("me", "some one", 77)
    assert [answer.is_startup for answer in answers] == [True] + 6 * [False]
    settled = [answer.asked for answer in answers if answer.is_settled]
    assert settled == [b"", b"delete from notes", b"begin\ndelete from notes\ncommit"]


def test_bytes_pass_in_both_directions(site):
    with site.connect() as connection:
        big = "x" * 3_000_000
        assert connection.execute("select %s", [big]).fetchone() == (big,)
        with connection.cursor().copy("copy notes from stdin") as copy:
            for number in range(1000):
                copy.write_row([str(number)])

    assert len(site.words()) == 1000


def test_a_delay_counts_each_way(site):
    with site.connect() as connection:
        site.proxy.mode = Delay(5)
        began = time.monotonic()
        connection.execute("select 1")
        assert time.monotonic() - began >= 10

        site.proxy.heal()
        began = time.monotonic()
        connection.execute("select 1")
        assert time.monotonic() - began < 10


def test_a_thin_line_limits_the_bytes_per_second(site):
    with site.connect() as connection:
        site.proxy.mode = Bandwidth(100_000)
        began = time.monotonic()
        answer = connection.execute("select repeat('x', 50000)").fetchone()
        assert len(answer[0]) == 50_000
        assert time.monotonic() - began >= 0.5


def test_stalled_bytes_arrive_when_the_stall_ends(site):
    with site.connect() as connection:
        site.proxy.mode = Stall()
        asking = Asking(connection, b"insert into notes values ('late') returning word")
        assert asking.is_silent()
        assert site.words() == []

        site.proxy.heal()
        asking.end()
        assert asking.rows == [("late",)]


def test_a_black_hole_swallows_and_keeps_connections_open(site):
    connection = site.connect(autocommit=False)
    connection.execute("insert into notes values ('open')")
    site.proxy.mode = Blackhole()
    asking = Asking(connection, b"commit")
    assert asking.is_silent()
    with pytest.raises(psycopg.errors.ConnectionTimeout):
        site.connect(connect_timeout=2)
    # The server gets no message, and the transaction stays open.
    assert site.locks() == 1

    site.proxy.heal()
    # What was lost is not sent again.
    assert asking.is_silent()
    site.connect().close()
    site.proxy.reset()
    asking.end()
    assert isinstance(asking.error, psycopg.OperationalError)
    eventually(lambda: site.locks() == 0, "the server gave up")
    assert site.words() == []


def test_a_client_that_leaves_a_black_hole_frees_the_server_when_it_heals(site):
    connection = site.connect()
    site.proxy.mode = Blackhole()
    connection.close()
    time.sleep(SILENCE)
    assert site.sessions() == 1

    site.proxy.heal()

    eventually(lambda: site.sessions() == 0, "the server ended the session")


def test_half_open_connections_get_no_answer_and_new_ones_pass(site):
    old = site.connect(autocommit=False)
    old.execute("insert into notes values ('open')")
    site.proxy.mode = HalfOpen()

    eventually(lambda: site.locks() == 0, "the server's end is gone")
    asking = Asking(old)
    assert asking.is_silent()
    with site.connect() as new:
        assert new.execute("select 1").fetchone() == (1,)
    site.proxy.reset(of(old))
    asking.end()
    assert isinstance(asking.error, psycopg.OperationalError)
    assert site.words() == []


def test_forgotten_connections_get_no_answer_and_the_server_keeps_their_locks(site):
    old = site.connect(autocommit=False)
    old.execute("insert into notes values ('open')")
    site.proxy.forget()

    asking = Asking(old, b"commit")
    assert asking.is_silent()
    assert site.locks() == 1
    site.proxy.reset()
    asking.end()


def test_the_server_executes_one_way_requests_and_their_answers_are_lost(site):
    connection = site.connect()
    site.proxy.mode = OneWay()
    asking = Asking(connection, b"insert into notes values ('done')")

    eventually(lambda: site.words() == ["done"], "the server did it")
    assert asking.is_silent()
    site.proxy.reset()
    asking.end()
    assert isinstance(asking.error, psycopg.OperationalError)


def test_a_reset_closes_open_connections_and_new_ones(site):
    connection = site.connect()
    asking = Asking(connection, b"select pg_sleep(20)")
    plain = socket.create_connection(("127.0.0.1", site.proxy.port))
    site.wait_until_asleep(connection)
    eventually(lambda: len(site.proxy.connections) == 2, "both are there")

    site.proxy.mode = Reset()

    asking.end()
    assert isinstance(asking.error, psycopg.OperationalError)
    with plain, pytest.raises(ConnectionResetError):
        plain.recv(1)
    with pytest.raises(psycopg.OperationalError):
        site.connect()
    site.proxy.heal()
    site.connect().close()


def test_an_answer_that_is_cut_off_was_committed(site):
    for number in range(20):
        with site.connect() as connection:
            site.proxy.mode = cut = CutAfterRequest()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("insert into notes values (%s)", [f"{number:02}"])
            assert len(cut.losses) == 1
            assert cut.losses[0].application_name == "tester"

            # At once: the server had answered before the client lost its connection.
            assert site.words() == [f"{each:02}" for each in range(number + 1)]


def test_in_a_transaction_the_answer_to_the_commit_is_cut_off(site):
    connection = site.connect(autocommit=False)
    site.proxy.mode = CutAfterRequest(b"into notes")

    connection.execute("insert into notes values ('first')")
    connection.execute("insert into notes values ('second')")
    with pytest.raises(psycopg.OperationalError):
        connection.commit()

    assert site.words() == ["first", "second"]


def test_answers_to_uncommitted_statements_pass(site):
    with site.connect(autocommit=False) as connection:
        site.proxy.mode = cut = CutAfterRequest()
        connection.execute("insert into notes values ('never')")
        connection.rollback()
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("select 1 / 0")
        connection.rollback()
        assert cut.losses == []


def test_the_text_of_a_prepared_statement_matches_a_rule(site):
    with site.connect(prepare_threshold=0) as connection:
        insert = "insert into notes values (%s)"
        connection.execute(insert, ["prepared"])
        connection.execute(insert, ["again"])

        site.proxy.mode = CutAfterRequest(b"into notes")
        assert connection.execute("select 1").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError):
            connection.execute(insert, ["cut"])

    assert site.words() == ["again", "cut", "prepared"]


def test_a_cut_happens_a_limited_number_of_times(site):
    site.proxy.mode = cut = CutAfterRequest(times=2)
    for word in ("first", "second"):
        with site.connect() as connection, pytest.raises(psycopg.OperationalError):
            connection.execute("insert into notes values (%s)", [word])
    with site.connect() as connection:
        connection.execute("insert into notes values ('third')")

    assert len(cut.losses) == 2
    assert site.words() == ["first", "second", "third"]


def test_the_server_does_not_execute_a_torn_request(site):
    for prepared in (False, True):
        with site.connect(prepare_threshold=0 if prepared else None) as connection:
            site.proxy.mode = cut = CutInRequest(b"into notes")
            with pytest.raises(psycopg.OperationalError):
                connection.execute("insert into notes values (%s)", ["never"])
            assert len(cut.losses) == 1

    eventually(lambda: site.sessions() == 0, "the server gave up")
    assert site.words() == []


def test_an_answer_that_is_torn_was_committed(site):
    with site.connect() as connection:
        site.proxy.mode = CutInReply(b"into notes")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("insert into notes values (repeat('x', 100000)) returning word")

    assert [len(word) for word in site.words()] == [100_000]


def test_a_predicate_chooses_by_the_name_of_the_program(site):
    with site.connect("well") as well, site.connect("ill") as ill:
        site.proxy.put(Blackhole(), by_application_name("ill"))

        asking = Asking(ill)
        assert asking.is_silent()
        assert well.execute("select 1").fetchone() == (1,)
        with site.connect("well") as another:
            assert another.execute("select 1").fetchone() == (1,)
        # One that comes while the rule holds is known by its first words.
        with pytest.raises(psycopg.errors.ConnectionTimeout):
            site.connect("ill", connect_timeout=2)

        site.proxy.heal()
        with site.connect("ill") as healed:
            assert healed.execute("select 1").fetchone() == (1,)
        site.proxy.reset(by_application_name("ill"))
        asking.end()
        assert well.execute("select 1").fetchone() == (1,)


def test_a_cancel_request_follows_the_rule_of_its_connection(site):
    with site.connect("ill") as ill:
        asking = Asking(ill, b"select pg_sleep(20)")
        site.wait_until_asleep(ill)
        site.proxy.put(Blackhole(), lambda each: each.application_name == "ill")
        with pytest.raises(psycopg.Error):
            ill.cancel_safe(timeout=SILENCE)
        site.proxy.reset()
        asking.end()

    with site.connect("well") as well:
        asking = Asking(well, b"select pg_sleep(20)")
        site.wait_until_asleep(well)
        well.cancel_safe()
        asking.end()
        assert isinstance(asking.error, psycopg.errors.QueryCanceled)


def test_the_proxy_knows_the_program_and_the_text_of_a_request(site: Site):
    def only() -> Connection:
        (connection,) = site.proxy.connections
        return connection

    with site.connect("curious", autocommit=False) as connection:
        assert only().application_name == "curious"
        assert only().backend == connection.info.backend_pid
        assert not only().is_waiting

        connection.execute("insert into notes values (%s)", ["word"])
        assert only().is_in_transaction
        assert b"insert into notes" in only().asked

        site.proxy.mode = OneWay()
        asking = Asking(connection, b"commit")
        eventually(lambda: only().asked == b"commit", "it is asked")
        eventually(lambda: site.words() == ["word"], "it is committed")
        site.proxy.reset()
        asking.end()


def test_a_commit_under_way_is_known(site):
    with site.connect(autocommit=False) as connection:
        connection.execute("select 1")
        site.proxy.mode = Mode.STALL
        asking = Asking(connection, b"commit")
        eventually(lambda: any(each.is_committing for each in site.proxy.connections), "commit")
        site.proxy.heal()
        asking.end()
        assert not any(each.is_committing for each in site.proxy.connections)


def test_new_connections_can_be_redirected_to_another_server(site, proxy, cluster):
    # A port on which no server listens.
    with Proxy(cluster.port) as gone:
        nobody = gone.port
    proxy.target = nobody
    with pytest.raises(psycopg.OperationalError):
        site.connect()

    proxy.target = cluster.port
    site.connect().close()


def test_connections_that_ended_are_not_kept(site):
    for _ in range(20):
        site.connect().close()

    eventually(lambda: site.proxy.connections == [], "the proxy forgot them")
    eventually(lambda: site.sessions() == 0, "the server ended them")
