"""How a worker ends: real signals, real deadlines, and what its jobs look like afterwards."""

import itertools
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.processes import READY, Program, Programs, eventually
from tests.support.sql import Sql
from tests.support.tiers import size

# The command with other deadlines, as its own are too long for a test.
COMMAND = """
    import os
    from functools import partial

    from graphile_worker import runner
    from graphile_worker._cli.main import main
    from graphile_worker._lease.service import LeaseTimings
    from graphile_worker._worker.pool import ShutdownTimings
    from graphile_worker._worker_config import WorkerConfig, WorkerTimings

    timings = WorkerTimings(
        shutdown=ShutdownTimings(write_timeout_seconds=WRITE_WITHIN),
        lease=LeaseTimings(unregister_timeout_seconds=WRITE_WITHIN),
    )
    runner.WorkerConfig = partial(WorkerConfig, timings=timings)
    os.environ.update(VARIABLES)

    main()
"""

# Seconds that a stop may take beyond its deadline: the rule in the nightly tier. In the gate it
# only shows that the stop does not wait for a task that sleeps for 120 s.
GRACE = size(gate=35.0, nightly=5.0)

# The same without a database: the worker needs nearly as long to notice, on an idle machine.
GRACE_WITHOUT_DATABASE = size(gate=35.0, nightly=8.0)

# Seconds that a stop waits for a write. The gate gives a busy machine more than the 2 s of the
# command.
WRITE_WITHIN = size(gate=20.0, nightly=2.0)

# Seconds that are enough to cancel a task, tidy up and release its job.
ENOUGH_TO_RELEASE = 5.0

SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGABRT]

_numbers = itertools.count(1)

# It ends when a file called "go" is there.
WAITS = """
    import asyncio
    from pathlib import Path

    async def task(payload, ctx):
        ctx.logger.info("begun")
        while not Path("go").exists():
            await asyncio.sleep(0.02)
        ctx.logger.info("finished, cancelled: %s", ctx.cancelled)
"""

NEVER_ENDS = """
    import asyncio

    async def task(payload, ctx):
        ctx.logger.info("begun")
        try:
            await asyncio.Event().wait()
        finally:
            ctx.logger.info("tidied up")
"""

# Nobody can stop it, nor tell it anything.
SLEEPS = """
    import time

    def task(payload, ctx):
        ctx.logger.info("begun")
        time.sleep(120)
"""

SWALLOWS = """
    import asyncio

    async def task(payload, ctx):
        ctx.logger.info("begun")
        while True:
            try:
                await asyncio.sleep(120)
            except asyncio.CancelledError:
                ctx.logger.info("will not give up")
"""

BLOCKS_A_THREAD = """
    import asyncio
    import time

    async def task(payload, ctx):
        ctx.logger.info("begun")
        await asyncio.to_thread(time.sleep, 120)
"""


class Worker:
    """The command in a folder with one task, `it`, and short deadlines."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    def start(
        self, task: str, *flags: str, write_within: float = WRITE_WITHIN, **options: float | None
    ) -> Program:
        """The worker, once it looks for jobs."""
        self._programs.write("tasks/it.py", task)
        command = command_with(write_within=write_within, **options)
        worker = self._programs.python(command, *flags)
        worker.wait_for_line(READY)
        return worker

    def let_go(self) -> None:
        (self._programs.folder / "go").touch()


@pytest.fixture
def worker(programs: Programs) -> Worker:
    return Worker(programs)


# The first signal


@pytest.mark.every_version
@pytest.mark.feature("F212", "F213")
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_the_first_signal_lets_running_jobs_finish_and_takes_no_more(worker, sql, number):
    running = worker.start(WAITS)
    add(sql)
    running.wait_for_line("begun")
    waiting = add(sql)

    running.signal(number)
    running.wait_for_line(f"stopping: received {number.name}")
    still_running = running.is_running
    worker.let_go()

    assert still_running
    assert running.end() == 0
    assert "finished, cancelled: False" in running.err
    assert jobs(sql) == {waiting: (0, None)}


@pytest.mark.feature("F212")
def test_finish_ends_an_idle_worker_immediately(worker):
    running = worker.start(WAITS)

    began = time.monotonic()
    code = running.stop(signal.SIGTERM)

    assert code == 0
    assert time.monotonic() - began < GRACE


def test_a_job_that_was_being_fetched_when_the_signal_arrived_is_released(worker, sql):
    running = worker.start(NEVER_ENDS, "--poll-interval", "100", shutdown_timeout=30)
    # A transaction sees the sessions as they were when it first looked.
    beside = sql.another()
    with sql.connection.transaction():
        # Nobody can take a job meanwhile, only wait for it.
        sql.run("lock table :schema._private_jobs in exclusive mode")
        job = add(sql)
        eventually(lambda: waiting_for_locks(beside) == 1, "the worker asks for a job")

        running.signal(signal.SIGTERM)
        running.wait_for_line("stopping: ")
    beside.close()
    code = running.end()

    assert code == 0
    assert jobs(sql) == {job: (0, None)}


def test_a_worker_that_runs_once_finishes_what_runs_and_leaves_the_rest(worker, sql):
    add(sql)
    waiting = add(sql)
    running = worker.start(WAITS, "--once")
    running.wait_for_line("begun")

    running.signal(signal.SIGTERM)
    running.wait_for_line("stopping")
    worker.let_go()

    assert running.end() == 0
    assert jobs(sql) == {waiting: (0, None)}


def test_a_worker_that_is_interrupted_while_it_starts_ends_without_a_traceback(programs):
    programs.write(
        "slow.py",
        """
        import asyncio
        from contextlib import asynccontextmanager

        from graphile_worker import App

        @asynccontextmanager
        async def lifespan():
            print("starting", flush=True)
            await asyncio.sleep(120)
            yield

        app = App(lifespan=lifespan)

        @app.task
        async def it(): ...
        """,
    )
    starting = programs.command("--app", "slow")
    eventually(lambda: "starting" in starting.out, "the worker begins to start")

    code = starting.stop(signal.SIGINT)

    assert (code, starting.err) == (130, "")


# A worker in a program that hears signals itself. The task raises a KeyboardInterrupt of its own
# first, then it waits.
INTERRUPTED = """
    import asyncio
    import sys
    import time

    from graphile_worker import run


    async def it(payload, ctx):
        if ctx.job.attempts == 1:
            raise KeyboardInterrupt
        print("begun", file=sys.stderr, flush=True)
        {wait}


    async def main():
        await (await run(None, {{"it": it}}, handle_signals=False))


    {start}
"""


def is_spent(sql: Sql, job: int) -> bool:
    return bool(jobs(sql)[job] == (1, None))


@pytest.mark.every_version
def test_ctrl_c_stops_a_program_and_a_keyboard_interrupt_of_a_task_does_not(programs, sql):
    in_loop = ("await asyncio.Event().wait()", "asyncio.run(main())")
    in_task = ("time.sleep(120)", "asyncio.new_event_loop().run_until_complete(main())")
    for wait, start in (in_loop, in_task):
        job = add(sql)
        program = programs.python(INTERRUPTED.format(wait=wait, start=start))
        eventually(partial(is_spent, sql, job), "the first attempt is spent")
        sql.run("select :schema.reschedule_jobs(array[$1::bigint], run_at := now())", job)
        program.wait_for_line("begun")

        program.signal(signal.SIGINT)

        assert program.end() == -signal.SIGINT
        assert "KeyboardInterrupt" in program.err
        # The loop of the first program lets its tasks tidy up.
        assert (jobs(sql)[job] == (1, None)) is ("asyncio.run" in start)
        sql.run("delete from :schema._private_jobs")


# Before the deadline: a request


@pytest.mark.feature("F214")
@pytest.mark.parametrize(
    "task",
    [
        """
        async def task(payload, ctx):
            ctx.logger.info("begun, cancelled: %s", ctx.cancelled)
            await ctx.wait_cancelled()
            ctx.logger.info("gave up, cancelled: %s", ctx.cancelled)
        """,
        """
        from datetime import timedelta


        def task(payload, ctx):
            ctx.logger.info("begun, cancelled: %s", ctx.cancelled)
            while not ctx.wait_cancelled(timedelta(milliseconds=10)):
                pass
            ctx.logger.info("gave up, cancelled: %s", ctx.cancelled)
        """,
    ],
    ids=["async", "plain"],
)
def test_after_cancel_after_tasks_are_asked_to_give_up(worker, sql, task):
    running = worker.start(task, cancel_after=0.3, shutdown_timeout=None)
    add(sql)
    running.wait_for_line("begun, cancelled: False")

    code = running.stop()

    assert code == 0
    assert "gave up, cancelled: True" in running.err
    assert "completed job" in running.err
    assert jobs(sql) == {}


def test_the_job_of_a_task_that_ends_with_cancelled_error_is_released(worker, sql):
    task = """
        import asyncio

        async def task(payload, ctx):
            ctx.logger.info("begun")
            await ctx.wait_cancelled()
            raise asyncio.CancelledError
    """
    running = worker.start(task, cancel_after=0.3, shutdown_timeout=None)
    job = add(sql)
    running.wait_for_line("begun")

    code = running.stop()

    assert code == 0
    assert jobs(sql) == {job: (0, None)}


@pytest.mark.feature("F213")
def test_without_a_deadline_a_stop_waits_for_tasks_that_do_not_listen(worker, sql):
    task = """
        import asyncio
        from pathlib import Path

        async def task(payload, ctx):
            ctx.logger.info("begun")
            await ctx.wait_cancelled()
            ctx.logger.info("heard it, and goes on")
            while not Path("go").exists():
                await asyncio.sleep(0.02)
    """
    running = worker.start(task, cancel_after=0.1, shutdown_timeout=None)
    add(sql)
    running.wait_for_line("begun")

    running.signal(signal.SIGTERM)
    running.wait_for_line("heard it, and goes on")
    stayed = stays(running, seconds=ENOUGH_TO_RELEASE)
    worker.let_go()

    assert stayed
    assert running.end() == 0
    assert "completed job" in running.err
    assert jobs(sql) == {}


# At the deadline


@pytest.mark.every_version
@pytest.mark.feature("F214", "F215")
def test_at_shutdown_timeout_async_tasks_are_cancelled_and_their_jobs_released(worker, sql):
    running = worker.start(NEVER_ENDS, cancel_after=0.1, shutdown_timeout=0.5)
    job = add(sql, queue="one at a time")
    before = run_at(sql, job)
    running.wait_for_line("begun")

    seconds, code = stopped(running)

    assert code == 0
    assert 0.5 <= seconds < 0.5 + GRACE
    assert running.err.index("tidied up") < running.err.index(f"released job {job}")
    assert jobs(sql) == {job: (0, None)}
    assert run_at(sql, job) == before
    assert locked_queues(sql) == 0
    assert sql.value("select last_error from :schema.jobs") is None


@pytest.mark.feature("F216")
def test_a_job_that_was_interrupted_may_be_held_back(worker, sql):
    running = worker.start(
        NEVER_ENDS,
        shutdown_timeout=0.3,
        interrupted_job_retry_delay=timedelta(hours=1).total_seconds(),
    )
    job = add(sql)
    running.wait_for_line("begun")

    running.stop()

    wait = sql.value("select run_at - now() from :schema.jobs")
    assert timedelta(minutes=59) < wait <= timedelta(hours=1)
    assert jobs(sql) == {job: (0, None)}


@pytest.mark.parametrize("task", [NEVER_ENDS, SLEEPS, SWALLOWS], ids=["async", "plain", "swallows"])
def test_a_stop_at_the_deadline_leaves_no_traceback_in_the_log(worker, sql, task):
    running = worker.start(task, cancel_after=0.1, shutdown_timeout=0.3)
    add(sql)
    running.wait_for_line("begun")

    running.stop()

    assert "Traceback" not in running.err, running.err


def test_an_attempt_that_failed_before_stays_counted(worker, sql):
    running = worker.start(NEVER_ENDS, shutdown_timeout=0.3)
    job = add(sql, attempts=3)
    running.wait_for_line("begun")

    running.stop()

    assert jobs(sql) == {job: (3, None)}


def test_a_task_that_finishes_when_it_is_cancelled_has_finished(worker, sql):
    task = """
        import asyncio

        async def task(payload, ctx):
            ctx.logger.info("begun")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.sleep(0.1)
    """
    running = worker.start(task, shutdown_timeout=0.3)
    add(sql)
    running.wait_for_line("begun")

    code = running.stop()

    assert code == 0
    assert "completed job" in running.err
    assert jobs(sql) == {}


@pytest.mark.parametrize(
    "task", [SLEEPS, SWALLOWS, BLOCKS_A_THREAD], ids=["plain", "swallows", "to_thread"]
)
def test_a_task_that_cannot_be_stopped_does_not_delay_the_exit(worker, sql, task):
    running = worker.start(task, shutdown_timeout=0.5)
    job = add(sql, queue="one at a time")
    running.wait_for_line("begun")

    seconds, code = stopped(running)

    assert code == 0
    assert seconds < 0.5 + GRACE
    assert f"released job {job}" in running.err
    assert jobs(sql) == {job: (0, None)}
    assert locked_queues(sql) == 0


LIFESPAN = """
    import asyncio
    import logging
    import time
    from contextlib import asynccontextmanager

    from graphile_worker import App, SyncJobContext

    @asynccontextmanager
    async def lifespan():
        yield
        logging.warning("the lifespan ends")
        await asyncio.sleep(ENDS_IN)
        logging.warning("the lifespan has ended")

    app = App(lifespan=lifespan)

    @app.task
    def it(ctx: SyncJobContext):
        ctx.logger.info("begun")
        time.sleep(120)
"""


def test_the_job_of_a_task_that_is_still_running_is_released_last(programs, sql):
    programs.write("slow.py", LIFESPAN.replace("ENDS_IN", "0.1"))
    job = add(sql)
    running = programs.python(command_with(shutdown_timeout=0.3), "--app", "slow")
    running.wait_for_line("begun")

    code = running.stop()

    assert code == 0
    handed_back = running.err.index(f"released job {job}")
    assert running.err.index("the lifespan has ended") < handed_back
    assert jobs(sql) == {job: (0, None)}


def test_a_lifespan_that_does_not_end_does_not_keep_jobs_locked(programs, sql):
    programs.write("slow.py", LIFESPAN.replace("ENDS_IN", "120"))
    job = add(sql)
    running = programs.python(command_with(shutdown_timeout=0.3), "--app", "slow")
    running.wait_for_line("begun")

    running.stop()

    assert jobs(sql) == {job: (0, None)}
    assert "TimeoutError" not in running.err, running.err


# A second signal


@pytest.mark.every_version
@pytest.mark.feature("F212")
@pytest.mark.parametrize("task", [NEVER_ENDS, SLEEPS, SWALLOWS], ids=["async", "plain", "swallows"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_second_signal_releases_jobs_at_once(worker, sql, task, number):
    running = worker.start(task, cancel_after=None, shutdown_timeout=None)
    job = add(sql, queue="one at a time")
    running.wait_for_line("begun")
    running.signal(signal.SIGTERM)
    running.wait_for_line("stopping: ")

    began = time.monotonic()
    code = running.stop(number)

    assert code == 128 + number
    assert time.monotonic() - began < GRACE
    assert f"stopping at once: received {number.name}" in running.err
    assert jobs(sql) == {job: (0, None)}
    assert locked_queues(sql) == 0


@pytest.mark.parametrize(
    "number", [signal.SIGHUP, signal.SIGUSR2, signal.SIGABRT], ids=lambda number: number.name
)
def test_the_second_signal_sets_the_exit_code(worker, sql, number):
    running = worker.start(NEVER_ENDS, shutdown_timeout=None)
    job = add(sql)
    running.wait_for_line("begun")
    running.signal(signal.SIGINT)
    running.wait_for_line("stopping: ")

    code = running.stop(number)

    assert code == 128 + number
    assert jobs(sql) == {job: (0, None)}


def test_many_signals_do_no_harm(worker, sql):
    running = worker.start(SWALLOWS, shutdown_timeout=None)
    job = add(sql)
    running.wait_for_line("begun")

    running.signal(signal.SIGTERM)
    running.wait_for_line("stopping: ")
    for _ in range(10):
        running.signal(signal.SIGTERM)
    running.wait_for_line("stopping at once")
    for _ in range(10):
        running.signal(signal.SIGTERM)

    assert running.end() == 128 + signal.SIGTERM
    assert jobs(sql) == {job: (0, None)}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_during_the_last_steps_leaves_no_job_locked(programs, sql, number):
    programs.write("slow.py", LIFESPAN.replace("ENDS_IN", "2"))
    job = add(sql)
    running = programs.python(command_with(shutdown_timeout=0.1), "--app", "slow")
    running.wait_for_line("begun")
    running.signal(signal.SIGTERM)
    running.wait_for_line("the lifespan ends")

    running.stop(number)

    assert jobs(sql) == {job: (0, None)}


def test_a_second_signal_does_not_wait_for_a_lifespan_that_does_not_end(programs):
    programs.write("slow.py", LIFESPAN.replace("ENDS_IN", "120"))
    running = programs.worker("--app", "slow")
    running.signal(signal.SIGTERM)
    running.wait_for_line("the lifespan ends")

    code = running.stop(signal.SIGTERM)

    assert code == 128 + signal.SIGTERM


# When something else goes wrong at the same time


@pytest.mark.parametrize("task", [NEVER_ENDS, SLEEPS, SWALLOWS], ids=["async", "plain", "swallows"])
def test_without_a_database_the_jobs_that_stay_locked_are_logged(tmp_path, own_cluster, task):
    with Programs(tmp_path, DATABASE_URL=own_cluster.url()) as programs:
        running = Worker(programs).start(task, shutdown_timeout=0.5, write_within=2.0)
        job = add_to(own_cluster)
        running.wait_for_line("begun")
        own_cluster.stop()

        seconds, code = stopped(running)

    assert code == 1
    assert seconds < 0.5 + GRACE_WITHOUT_DATABASE
    assert last_words(running).endswith(f"they stay locked: {job}")


def test_a_job_that_ended_during_an_outage_is_named_as_well(tmp_path, own_cluster):
    with Programs(tmp_path, DATABASE_URL=own_cluster.url()) as programs:
        worker = Worker(programs)
        running = worker.start(WAITS, shutdown_timeout=0.5, write_within=2.0)
        job = add_to(own_cluster)
        running.wait_for_line("begun")
        own_cluster.stop()
        worker.let_go()
        running.wait_for_line("finished")

        seconds, code = stopped(running)

    assert code == 1
    assert seconds < 0.5 + GRACE_WITHOUT_DATABASE
    assert last_words(running).endswith(f"they stay locked: {job}")


def test_an_idle_worker_without_its_database_shuts_down_gracefully(tmp_path, own_cluster):
    with Programs(tmp_path, DATABASE_URL=own_cluster.url()) as programs:
        running = Worker(programs).start(
            WAITS, "--poll-interval", "100", shutdown_timeout=0.5, write_within=2.0
        )
        own_cluster.stop()
        running.wait_for_line("database unreachable")

        seconds, code = stopped(running)

    assert code == 0
    assert seconds < 0.5 + GRACE_WITHOUT_DATABASE


@pytest.mark.parametrize("task", [NEVER_ENDS, SLEEPS], ids=["async", "plain"])
def test_a_server_that_stops_answering_does_not_delay_the_exit(tmp_path, own_cluster, task):
    with Programs(tmp_path, DATABASE_URL=own_cluster.url()) as programs:
        running = Worker(programs).start(task, shutdown_timeout=0.5, write_within=2.0)
        job = add_to(own_cluster)
        running.wait_for_line("begun")

        with frozen(own_cluster):
            seconds, code = stopped(running)

    assert code == 1
    assert seconds < 0.5 + GRACE_WITHOUT_DATABASE
    assert last_words(running).endswith(f"they stay locked: {job}")


def test_an_idle_worker_whose_server_stops_answering_exits_in_time(tmp_path, own_cluster):
    with Programs(tmp_path, DATABASE_URL=own_cluster.url()) as programs:
        running = Worker(programs).start(
            WAITS, "--poll-interval", "100", shutdown_timeout=0.5, write_within=2.0
        )

        with frozen(own_cluster):
            # Longer than it takes until it asks again.
            assert stays(running, seconds=1)
            seconds, code = stopped(running)

    assert code == 0
    assert seconds < 0.5 + GRACE_WITHOUT_DATABASE


def test_a_write_that_lands_at_the_last_moment_is_not_called_lost(programs, sql):
    programs.write("tasks/waits.py", WAITS)
    programs.write("tasks/swallows.py", SWALLOWS)
    slow, stubborn = add(sql, "waits"), add(sql, "swallows")
    running = programs.python(command_with(shutdown_timeout=0.3), "-j", "2")
    eventually(lambda: running.err.count("begun") == 2, "both jobs run")
    with sql.connection.transaction():
        sql.run("select from :schema._private_jobs where id = $1 for update", slow)
        (programs.folder / "go").touch()
        running.wait_for_line("finished")

        running.signal(signal.SIGTERM)
        running.wait_for_line(f"released job {stubborn}")
    code = running.end()

    assert jobs(sql) == {stubborn: (0, None)}
    assert code == 0, running.err


def test_a_closed_standard_output_does_not_hold_up_the_end(programs, sql):
    programs.write("tasks/it.py", SWALLOWS.replace("while True", "print()\n        while True"))
    script = programs.write("program.py", command_with(shutdown_timeout=0.3))
    add(sql)
    reading, writing = os.pipe()
    os.close(reading)
    running = programs.start([sys.executable, str(script)], {}, stdout=writing)
    os.close(writing)
    running.wait_for_line("begun")

    seconds, code = stopped(running)

    assert seconds < 0.3 + GRACE
    assert code == 0


# All of it at once


ROUNDS = size(gate=6, nightly=50)
STOP_AFTER = 1.0

# How many jobs of which kind run at once.
MIX = {
    "soon": 50,
    "soon_in_transaction": 20,
    "soon_in_thread": 20,
    "soon_in_thread_in_transaction": 10,
    "heeds": 20,
    "heeds_in_thread": 10,
    "endless": 30,
    "tidies": 10,
    "finishes_late": 10,
    "stubborn": 10,
    "swallows": 10,
}
AT_ONCE = sum(MIX.values())

# Jobs of these kinds have a named queue each.
QUEUED = ("soon", "endless", "stubborn")

# These wait for a free slot in vain: when one falls free, nothing more is taken.
WAITING = 20

BUSY = """
    import asyncio
    import os
    import random
    import threading
    import time

    import psycopg

    from graphile_worker import App, JobContext, SyncJobContext
    from graphile_worker.events import GracefulShutdown

    ROUND = int(os.environ["ROUND"])
    NOTE = "insert into diary (job, round, what) values (%s, %s, %s)"
    # In most rounds these give in, as each stop that must do without them takes two seconds more.
    STUBBORN = ROUND % 5 == 0
    chance = random.Random(ROUND)

    app = App()
    diary = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
    leave, leave_in_thread = asyncio.Event(), threading.Event()

    @app.on(GracefulShutdown)
    def may_end(event):
        leave.set()
        leave_in_thread.set()

    def note(ctx, what):
        # Without await: nothing may come between the note of an end and that end.
        diary.execute(NOTE, [ctx.job.id, ROUND, what])

    def moment():
        return chance.random() * 0.3

    @app.task
    async def soon(ctx: JobContext):
        note(ctx, "start")
        await leave.wait()
        await asyncio.sleep(moment())
        note(ctx, "end")

    @app.task
    async def soon_in_transaction(ctx: JobContext):
        note(ctx, "start")
        await leave.wait()
        await asyncio.sleep(moment())
        async with ctx.transaction() as connection:
            await connection.execute(NOTE, [ctx.job.id, ROUND, "end"])

    @app.task
    def soon_in_thread(ctx: SyncJobContext):
        note(ctx, "start")
        leave_in_thread.wait()
        time.sleep(moment())
        note(ctx, "end")

    @app.task
    def soon_in_thread_in_transaction(ctx: SyncJobContext):
        note(ctx, "start")
        leave_in_thread.wait()
        time.sleep(moment())
        with ctx.transaction() as connection:
            connection.execute(NOTE, [ctx.job.id, ROUND, "end"])

    @app.task
    async def heeds(ctx: JobContext):
        note(ctx, "start")
        await ctx.wait_cancelled()
        note(ctx, "end")

    @app.task
    def heeds_in_thread(ctx: SyncJobContext):
        note(ctx, "start")
        ctx.wait_cancelled()
        note(ctx, "end")

    @app.task
    async def endless(ctx: JobContext):
        note(ctx, "start")
        await asyncio.Event().wait()

    @app.task
    async def tidies(ctx: JobContext):
        note(ctx, "start")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(moment())

    @app.task
    async def finishes_late(ctx: JobContext):
        note(ctx, "start")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            note(ctx, "end")

    @app.task
    def stubborn(ctx: SyncJobContext):
        note(ctx, "start")
        leave_in_thread.wait()
        time.sleep(120 if STUBBORN else moment())
        note(ctx, "end")

    @app.task
    async def swallows(ctx: JobContext):
        note(ctx, "start")
        await leave.wait()
        while STUBBORN:
            try:
                await asyncio.sleep(120)
            except asyncio.CancelledError:
                pass
        note(ctx, "end")

    @app.task
    async def later(ctx: JobContext):
        note(ctx, "start")
"""


@pytest.mark.feature("F212", "F213", "F214", "F215")
@pytest.mark.timeout(900)
def test_no_stop_of_a_busy_worker_leaves_a_lock_or_runs_a_completed_job_again(
    programs: Programs, sql: Sql, figure: Callable[[str], None]
) -> None:
    programs.write("busy.py", BUSY)
    sql.run("create table diary (job bigint, round int, what text)")
    slowest, handed_back = 0.0, 0

    for number in range(ROUNDS):
        there = fill_up(sql)
        running = programs.python(
            command_with(cancel_after=0.3, shutdown_timeout=STOP_AFTER),
            *("--app", "busy", "-j", str(AT_ONCE)),
            ROUND=str(number),
        )
        eventually(partial(all_run, sql, number), f"all jobs of round {number} run")
        seconds, code = stopped(running)
        slowest = max(slowest, seconds)
        handed_back += AT_ONCE - noted(sql, number, "end")

        assert code == 0, running.err
        assert seconds < STOP_AFTER + GRACE
        assert_well_left(sql, there)

    ended = sql.value("select count(*) from diary where what = 'end'")
    assert ended > ROUNDS * AT_ONCE / 3
    assert handed_back > ROUNDS * AT_ONCE / 10
    figure(
        f"SIGTERM during {AT_ONCE} running jobs, {ROUNDS} rounds: 0 locked afterwards, "
        f"0 of {ended} completed jobs run again, {handed_back} handed back, "
        f"slowest exit {slowest:.1f} s after the signal (deadline {STOP_AFTER:.0f} s)"
    )


def fill_up(sql: Sql) -> set[int]:
    """Add what is missing of each kind; the ids of all jobs that there are."""
    found = Counter(name for (name,) in sql.run("select task_identifier from :schema.jobs"))
    for kind, wanted in {**MIX, "later": WAITING}.items():
        for _ in range(wanted - found[kind]):
            queue = f"{kind} {next(_numbers)}" if kind in QUEUED else None
            add(sql, kind, queue=queue, priority=10 if kind == "later" else 0)
    return set(jobs(sql))


def noted(sql: Sql, number: int, what: str) -> int:
    """How many jobs noted this in that round."""
    found: int = sql.value(
        "select count(*) from diary where round = $1::int and what = $2", number, what
    )
    return found


def all_run(sql: Sql, number: int) -> bool:
    return noted(sql, number, "start") == AT_ONCE


def assert_well_left(sql: Sql, there: set[int]) -> None:
    """No lock, no attempt counted, nothing lost, nothing that would run or did run again."""
    left = jobs(sql)
    ends = sql.run("select job, max(round), count(*) from diary where what = 'end' group by job")
    ended = {job: number for job, number, _ in ends}
    assert set(left.values()) <= {(0, None)}
    assert locked_queues(sql) == 0
    assert sql.value("select count(*) from :schema.jobs where last_error is not null") == 0
    assert [job for job, _, count in ends if count > 1] == []
    assert set(left) == there - set(ended)
    starts = sql.run("select job, max(round) from diary where what = 'start' group by job")
    assert [job for job, number in starts if number > ended.get(job, number)] == []


# Words of this file


def command_with(*, write_within: float = WRITE_WITHIN, **options: float | None) -> str:
    """A program that is the command, with these options; durations in seconds."""
    variables = {
        f"GRAPHILE_WORKER_{name.upper()}": "off" if value is None else f"{value * 1000:.0f}ms"
        for name, value in options.items()
    }
    command = COMMAND.replace("VARIABLES", repr(variables))
    return command.replace("WRITE_WITHIN", str(write_within))


def add(
    sql: Sql,
    identifier: str = "it",
    *,
    queue: str | None = None,
    priority: int = 0,
    attempts: int = 0,
) -> int:
    """Add a job; its id."""
    job: int = sql.value(
        "select id from :schema.add_job($1, queue_name := $2, priority := $3::int,"
        " run_at := case when $4 then now() + interval '1 hour' end)",
        *(identifier, queue, priority, attempts > 0),
    )
    if attempts:
        # Not before it is as the test wants it.
        sql.run(
            "select from :schema.reschedule_jobs(array[$1::bigint], now(), attempts := $2::int)",
            job,
            attempts,
        )
    return job


def add_to(cluster: Cluster) -> int:
    """Add a job on a server of the test's own; its id."""
    behind = Sql(cluster.dsn(), "graphile_worker")
    job = add(behind)
    behind.close()
    return job


def jobs(sql: Sql) -> dict[int, tuple[int, str | None]]:
    """The jobs that there are: attempts and lock by id."""
    found = sql.run("select id, attempts, locked_by from :schema.jobs")
    return {job: (attempts, locked_by) for job, attempts, locked_by in found}


def run_at(sql: Sql, job: int) -> datetime:
    found: datetime = sql.value("select run_at from :schema.jobs where id = $1", job)
    return found


def locked_queues(sql: Sql) -> int:
    found: int = sql.value(
        "select count(*) from :schema._private_job_queues where locked_by is not null"
    )
    return found


def waiting_for_locks(sql: Sql) -> int:
    """How many sessions of a worker wait for somebody else's lock."""
    found: int = sql.value(
        "select count(*) from pg_stat_activity where datname = current_database()"
        " and application_name = 'graphile-worker' and wait_event_type = 'Lock'"
    )
    return found


def stopped(running: Program) -> tuple[float, int]:
    """Send SIGTERM; after how many seconds it ended, and with which code."""
    began = time.monotonic()
    code = running.stop(signal.SIGTERM)
    return time.monotonic() - began, code


def last_words(running: Program) -> str:
    """The one line with which the command says what went wrong."""
    (line,) = (line for line in running.err.splitlines() if line.startswith("graphile-worker: "))
    return line


def stays(running: Program, seconds: float) -> bool:
    """Does it still run after that time?"""
    deadline = time.monotonic() + seconds
    while running.is_running and time.monotonic() < deadline:
        time.sleep(0.02)
    return running.is_running


@contextmanager
def frozen(cluster: Cluster) -> Iterator[None]:
    """Meanwhile nothing of the server moves: its connections are open, and nobody answers."""
    processes = server_processes(cluster)
    try:
        send_all(processes, signal.SIGSTOP)
        yield
    finally:
        send_all(processes, signal.SIGCONT)


def send_all(processes: list[int], number: signal.Signals) -> None:
    for pid in processes:
        # The session that was asked for the others may have ended by now.
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def server_processes(cluster: Cluster) -> list[int]:
    """The first process of a server, which makes the others, and then those."""
    behind = Sql(cluster.dsn(), "graphile_worker")
    first = parent_of(behind.value("select pg_backend_pid()"))
    behind.close()
    others = (int(path.parent.name) for path in Path("/proc").glob("[0-9]*/stat"))
    return [first, *(pid for pid in others if parent_of(pid) == first)]


def parent_of(pid: int) -> int:
    try:
        # Its name, which may hold anything, ends with the last bracket.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(fields[1])
