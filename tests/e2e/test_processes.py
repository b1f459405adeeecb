"""Programs that enqueue may end without a word, and may fork after they have begun."""

import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import TestDatabase
from tests.support.processes import Program, Programs
from tests.support.sql import Sql
from tests.support.tiers import size

WITNESS = """
create table seen (who text, backend int, at timestamptz default clock_timestamp());

create function witness() returns trigger language plpgsql as $body$
begin
  insert into public.seen (who, backend) values (new.payload ->> 'who', pg_backend_pid());
  return new;
end
$body$;

create trigger witness after insert on :schema._private_jobs
for each row execute function witness();
"""

BEGINNING = """
import asyncio
import multiprocessing
import os
import sys
import threading

from graphile_worker import Client, sync

client = sync.Client()


def add(who):
    client.add_job("task", {"who": who})


def wait_for(child):
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit("the child failed")


"""


class Script:
    """A script that runs in a process of its own, beside the test's database."""

    def __init__(self, programs: Programs) -> None:
        self.programs = programs

    def run(self, script: str) -> Program:
        program = self.programs.python(BEGINNING + textwrap.dedent(script))
        program.end()
        return program

    @property
    def without_fork(self) -> "Script":
        return Script(self.programs.without_fork)


@pytest.fixture
def program(tmp_path: Path, database: TestDatabase) -> Iterator[Script]:
    with Programs(
        tmp_path,
        DATABASE_URL=database.url,
        PGHOST="127.0.0.1",
        PGPORT=str(database.cluster.port),
        PGUSER="postgres",
        PGDATABASE=database.name,
        GRAPHILE_WORKER_SCHEMA=database.schema,
    ) as programs:
        yield Script(programs.with_whole_end)


@pytest.fixture(autouse=True)
def witness(sql: Sql) -> None:
    """Let the database write down which session added which job."""
    for statement in WITNESS.split("\n\n"):
        sql.run(statement)


def backends(sql: Sql, who: str) -> set[int]:
    """The server's processes through which jobs of that payload came."""
    return {pid for (pid,) in sql.run("select backend from seen where who = $1::text", who)}


def added(sql: Sql, who: str) -> int:
    count: int = sql.value("select count(*) from seen where who = $1::text", who)
    return count


def since_the_last_job(sql: Sql) -> float:
    """Seconds: how long it took to begin does not count."""
    ended = "select extract(epoch from clock_timestamp() - max(at))::float8 from seen"
    seconds: float = sql.value(ended)
    return seconds


def assert_quiet(done: Program) -> None:
    assert (done.code, done.out, done.err) == (0, "", "")


ENDINGS = {
    "blocking": """
        add("me")
    """,
    "async": """
        asyncio.run(Client().add_job("task", {"who": "me"}))
    """,
    "async, client kept": """
        forgotten = Client()
        asyncio.run(forgotten.add_job("task", {"who": "me"}))
    """,
    "async, many at once": """
        async def main():
            shared = Client()
            await asyncio.gather(*(shared.add_job("task", {"who": "me"}) for _ in range(20)))

        asyncio.run(main())
    """,
    "both": """
        add("me")
        forgotten = Client()
        asyncio.run(forgotten.add_job("task", {"who": "me"}))
    """,
    "blocking within async": """
        async def main():
            await Client().add_job("task", {"who": "me"})
            add("me")

        asyncio.run(main())
    """,
    "in a thread": """
        thread = threading.Thread(target=add, args=["me"])
        thread.start()
        thread.join()
    """,
    "in a thread that nobody joins": """
        threading.Thread(target=add, args=["me"]).start()
    """,
    "in a daemon that waits forever": """
        ready = threading.Event()

        def work():
            add("me")
            ready.set()
            threading.Event().wait()

        threading.Thread(target=work, daemon=True).start()
        ready.wait()
    """,
    "sys.exit": """
        add("me")
        sys.exit(0)
    """,
}


# Seconds from the last job to the end of the program.
AT_ONCE = size(gate=30.0, nightly=5.0)


@pytest.mark.every_version
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_that_closes_nothing_ends_at_once(ending: str, program: Script, sql: Sql) -> None:
    # The other endings come in forks with the same end.
    started = program.without_fork if ending == "both" else program

    done = started.run(ENDINGS[ending])

    assert_quiet(done)
    assert since_the_last_job(sql) < AT_ONCE
    assert added(sql, "me") > 0


def test_a_program_that_fails_after_an_enqueue_ends_at_once_too(program: Script, sql: Sql) -> None:
    done = program.run(
        """
        add("me")
        raise SystemExit("its own words")
        """
    )

    assert (done.code, done.err) == (1, "its own words\n")
    assert since_the_last_job(sql) < AT_ONCE
    assert added(sql, "me") == 1


def test_a_program_ends_at_once_while_a_connection_is_being_opened(
    program: Script, sql: Sql
) -> None:
    done = program.run(
        """
        import socket

        silent = socket.create_server(("127.0.0.1", 0))

        async def main():
            # Without a connection string, libpq looks at the environment whenever it connects.
            del os.environ["DATABASE_URL"]
            shared = Client()
            await shared.add_job("task", {"who": "me"})
            os.environ["PGPORT"] = str(silent.getsockname()[1])
            adding = [asyncio.create_task(shared.add_job("task", {"who": "me"})) for _ in range(5)]
            await asyncio.wait(adding, return_when=asyncio.FIRST_COMPLETED)
            # Time to begin to connect.
            await asyncio.wait(adding, timeout=0.5)

        asyncio.run(main())
        silent.close()
        """
    )

    assert_quiet(done)
    assert since_the_last_job(sql) < AT_ONCE
    assert added(sql, "me") >= 2


CHILD_ENDINGS = {
    "falls off the end": "pass",
    "sys.exit": "sys.exit(0)",
    "os._exit": "os._exit(0)",
    "closes its client": "client.close()",
    "exec": 'os.execv(sys.executable, [sys.executable, "-c", "pass"])',
}


@pytest.mark.every_version
@pytest.mark.parametrize("ending", CHILD_ENDINGS)
def test_parent_and_child_both_go_on_adding(ending: str, program: Script, sql: Sql) -> None:
    done = program.run(
        f"""
        add("parent")
        child = os.fork()
        if child == 0:
            for _ in range(3):
                add("child")
            {CHILD_ENDINGS[ending]}
        else:
            add("parent")
            wait_for(child)
            add("parent")
        """
    )

    assert_quiet(done)
    assert (added(sql, "parent"), added(sql, "child")) == (3, 3)
    assert_strangers(sql, "parent", "child")


def assert_strangers(sql: Sql, parent: str, child: str) -> None:
    """Each kept one session from its first job to its last, and it was not the other's."""
    assert len(backends(sql, parent)) == 1
    assert len(backends(sql, child)) == 1
    assert backends(sql, parent) != backends(sql, child)


@pytest.mark.parametrize("ending", CHILD_ENDINGS)
def test_the_session_of_the_parent_survives_a_child_that_adds_nothing(
    ending: str, program: Script, sql: Sql
) -> None:
    done = program.run(
        f"""
        add("parent")
        child = os.fork()
        if child == 0:
            {CHILD_ENDINGS[ending]}
        else:
            wait_for(child)
            add("parent")
        """
    )

    assert_quiet(done)
    assert added(sql, "parent") == 2
    assert len(backends(sql, "parent")) == 1


def test_a_child_of_a_program_that_has_closed_its_client_can_add(program: Script, sql: Sql) -> None:
    done = program.run(
        """
        add("parent")
        client.close()
        child = os.fork()
        if child == 0:
            add("child")
        else:
            wait_for(child)
        """
    )

    assert_quiet(done)
    assert added(sql, "child") == 1


def test_children_and_grandchildren_have_separate_sessions(program: Script, sql: Sql) -> None:
    done = program.run(
        """
        names = ["parent", "child", "grandchild"]
        add(names[0])
        for name in names[1:]:
            child = os.fork()
            if child:
                add(names[names.index(name) - 1])
                wait_for(child)
                add(names[names.index(name) - 1])
                break
            add(name)
        """
    )

    assert_quiet(done)
    names = ["parent", "child", "grandchild"]
    assert [added(sql, name) for name in names] == [3, 3, 1]
    assert len(set.union(*(backends(sql, name) for name in names))) == 3


def test_many_children_may_add_at_once(program: Script, sql: Sql) -> None:
    done = program.run(
        """
        add("parent")
        children = []
        for number in range(8):
            child = os.fork()
            if child == 0:
                for _ in range(10):
                    add(f"child {number}")
                sys.exit(0)
            children.append(child)
        for child in children:
            wait_for(child)
        add("parent")
        """
    )

    assert_quiet(done)
    children = [f"child {number}" for number in range(8)]
    assert [added(sql, child) for child in children] == [10] * 8
    assert len(set.union(*(backends(sql, who) for who in ["parent", *children]))) == 9


def test_processes_of_multiprocessing_have_separate_sessions(program: Script, sql: Sql) -> None:
    done = program.run(
        """
        if __name__ == "__main__":
            add("parent")
            context = multiprocessing.get_context("fork")
            for who in ("first", "second"):
                process = context.Process(target=add, args=[who])
                process.start()
                process.join()
                assert process.exitcode == 0
            add("parent")
        """
    )

    assert_quiet(done)
    assert added(sql, "parent") == 2
    assert_strangers(sql, "parent", "first")
    assert_strangers(sql, "parent", "second")


def test_a_pool_of_multiprocessing_adds_all_its_jobs(program: Script, sql: Sql) -> None:
    done = program.run(
        """
        if __name__ == "__main__":
            add("parent")
            with multiprocessing.get_context("fork").Pool(3) as pool:
                pool.map(add, ["child"] * 60)
                pool.close()
                pool.join()
            add("parent")
        """
    )

    assert_quiet(done)
    assert (added(sql, "parent"), added(sql, "child")) == (2, 60)
    assert not backends(sql, "parent") & backends(sql, "child")
    assert len(backends(sql, "parent")) == 1


def test_a_fork_beside_a_thread_that_adds_keeps_all_sessions_apart(
    program: Script, sql: Sql
) -> None:
    done = program.run(
        """
        import warnings

        # Newer Pythons advise against this, but programs do it.
        warnings.simplefilter("ignore", DeprecationWarning)
        begun, leave = threading.Event(), threading.Event()

        def work():
            while not leave.is_set():
                add("thread")
                begun.set()
            add("thread")

        thread = threading.Thread(target=work)
        thread.start()
        begun.wait()
        add("parent")
        child = os.fork()
        if child == 0:
            add("child")
            sys.exit(0)
        wait_for(child)
        leave.set()
        thread.join()
        add("parent")
        """
    )

    assert_quiet(done)
    assert added(sql, "parent") == 2
    for who in ("parent", "thread", "child"):
        assert len(backends(sql, who)) == 1
    assert len(set.union(*(backends(sql, who) for who in ("parent", "thread", "child")))) == 3


def test_a_child_may_thread(program: Script, sql: Sql) -> None:
    done = program.run(
        """
        add("parent")
        child = os.fork()
        if child == 0:
            threads = [threading.Thread(target=add, args=["child"]) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        else:
            wait_for(child)
            add("parent")
        """
    )

    assert_quiet(done)
    assert (added(sql, "parent"), added(sql, "child")) == (2, 4)
    assert not backends(sql, "parent") & backends(sql, "child")


def test_an_async_client_that_was_closed_serves_parent_and_child(program: Script, sql: Sql) -> None:
    done = program.run(
        """
        shared = Client()

        async def add_and_close(who):
            async with shared:
                await shared.add_job("task", {"who": who})

        asyncio.run(add_and_close("parent"))
        child = os.fork()
        if child == 0:
            asyncio.run(add_and_close("child"))
        else:
            asyncio.run(add_and_close("parent"))
            wait_for(child)
        """
    )

    assert_quiet(done)
    assert (added(sql, "parent"), added(sql, "child")) == (2, 1)
    assert not backends(sql, "parent") & backends(sql, "child")
