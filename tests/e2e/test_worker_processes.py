"""`--processes`: real worker processes under one parent, real signals, and what becomes of jobs."""

import os
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.cluster import free_port
from tests.support.health import status
from tests.support.processes import INSTALLED, READY, Program, Programs, eventually
from tests.support.sql import Sql
from tests.support.tiers import size

# A busy machine takes seconds to start each process, and some tests start many.
pytestmark = [pytest.mark.feature("F304"), pytest.mark.timeout(180)]
PATIENCE = 90.0

# Seconds from the second signal to the end.
AT_THE_SECOND_SIGNAL = size(gate=35.0, nightly=8.0)

# Seconds after the limit of a stop in which an idle process must end.
SPARE = size(gate=15.0, nightly=6.0)

# The command with other limits, as its own are too long for a test; children are it, too.
COMMAND = """
    from graphile_worker._cli.main import main
    from graphile_worker._cli.supervisor import (
        parent_pipe, process_set, supervised_process, supervisor
    )

    LIMITS

    main()
"""

# It writes down who ran it, and takes a moment, so that the others have their share.
NOTES = """
    import asyncio
    import os

    async def task(payload, ctx):
        await ctx.query("insert into runs values (%s, %s)", [ctx.job.id, os.getpid()])
        await asyncio.sleep(0.01)
"""

# It ends when a file called "go" is there.
WAITS = """
    import asyncio
    import os
    from pathlib import Path

    async def task(payload, ctx):
        ctx.logger.info("begun in %s", os.getpid())
        while not Path("go").exists():
            await asyncio.sleep(0.02)
        ctx.logger.info("finished")
"""

NEVER_ENDS = """
    import asyncio

    async def task(payload, ctx):
        ctx.logger.info("begun")
        await asyncio.Event().wait()
"""

# The event loop stands still: nobody can tell it anything.
BLOCKS = """
    import time

    async def task(payload, ctx):
        ctx.logger.info("begun")
        time.sleep(300)
"""

LEAKS = """
    import os

    kept = []

    async def task(payload, ctx):
        await ctx.query("insert into runs values (%s, %s)", [ctx.job.id, os.getpid()])
        kept.append(b"x" * payload["megabytes"] * 1024 * 1024)
"""


# Without a file called "go", the first process is the last that can be made.
HINDERED = """(
        lambda line, real=supervised_process.build_child_command, made=[]: made.append(line) or (
            real(line) if len(made) == 1 or __import__("os").path.exists("go") else ["/nowhere"]
        )
    )"""


# The parent prints what it tells its children: nothing when one starts, a word to the old one when
# the new one is ready.
TELLING = """type("Telling", (process_set.SupervisedProcess,), {
                "send": lambda self, word, real=process_set.SupervisedProcess.send: (
                    print("told", self.pid, word.decode() or "nothing", flush=True),
                    real(self, word),
                )
            })"""


class Parent:
    """The command with `--processes`, in a folder with one task, `it`."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    def start(self, task: str, *flags: str, ready: int = 2, **limits: float | str) -> Program:
        """The parent, once so many of its children look for jobs."""
        self.write(task)
        parent = self._programs.python(command_with(limits), *flags)
        hear_times(parent, READY, ready)
        return parent

    def write(self, task: str) -> None:
        self._programs.write("tasks/it.py", task)

    def let_go(self) -> None:
        (self._programs.folder / "go").touch()


@pytest.fixture
def parent(programs: Programs, sql: Sql) -> Parent:
    sql.run("create table public.runs (job bigint, process int)")
    return Parent(programs)


# Work


@pytest.mark.every_version
def test_processes_share_the_jobs_and_run_each_once(parent, sql):
    running = parent.start(NOTES, "-p", "3", ready=3)
    jobs = add(sql, 300)

    eventually(lambda: left(sql) == 0, "all jobs are done")
    code = running.stop(signal.SIGTERM)

    runs = sql.run("select job, process from runs")
    assert code == 0
    assert Counter(job for job, _ in runs) == dict.fromkeys(jobs, 1)
    assert {process for _, process in runs} == set(children(running))
    assert len(children(running)) == 3


def test_the_parent_imports_no_tasks_and_has_no_connection(parent):
    running = parent.start("print('imported', flush=True)\n" + unindented(NOTES), "-p", "2")

    assert running.out.count("imported") == 2
    assert sockets_of_the_internet(running.pid) == []
    assert sockets_of_the_internet(children(running)[0]) != []


def test_the_children_install_the_schema(tmp_path, empty_database):
    with Programs.for_database(empty_database, tmp_path) as programs:
        programs.write("tasks/it.py", WAITS)
        running = programs.command("-p", "3")
        hear_times(running, READY, 3)

        assert running.stop(signal.SIGTERM) == 0


def test_once_each_process_runs_what_is_ready_and_the_parent_ends_after_them(parent, programs, sql):
    parent.write(NOTES)
    jobs = add(sql, 100)

    done = programs.run_to_end("-p", "2", "--once")

    assert done.code == 0
    assert Counter(job for (job,) in sql.run("select job from runs")) == dict.fromkeys(jobs, 1)
    assert [is_alive(pid) for pid in children(done)] == [False, False]


def test_once_the_parent_has_the_code_of_a_child_that_failed(parent, programs):
    parent.write(NOTES)

    done = programs.run_to_end("-p", "2", "--once", DATABASE_URL="postgres://127.0.0.1:1/none")

    assert done.code == 1
    assert len(children(done)) == 2
    assert "graphile-worker: " in done.err


# Restarting


@pytest.mark.every_version
def test_a_process_that_is_killed_is_started_again_and_its_job_recovered(parent, sql):
    running = parent.start(WAITS, "-p", "2", "--lease-duration", "8s", INITIAL_BACKOFF_SECONDS=0.1)
    [job] = add(sql, 1)
    killed = int(running.wait_for_line("begun in").split()[-1])

    os.kill(killed, signal.SIGKILL)
    running.wait_for_line(f"process {killed} was ended by SIGKILL")
    hear_times(running, "begun in", 2)
    parent.let_go()
    eventually(lambda: left(sql) == 0, "the job is done")
    hear_times(running, READY, 3)
    code = running.stop(signal.SIGTERM)

    assert code == 0
    assert running.err.count(f"completed job {job}") == 1
    assert len(children(running)) == 3


def test_a_process_that_is_stopped_by_hand_finishes_its_job_and_is_started_again(parent, sql):
    running = parent.start(WAITS, "-p", "2", INITIAL_BACKOFF_SECONDS=0.1)
    add(sql, 1)
    stopped = int(running.wait_for_line("begun in").split()[-1])

    # However often: only its parent can cut its stop short.
    os.kill(stopped, signal.SIGTERM)
    os.kill(stopped, signal.SIGTERM)
    running.wait_for_line("stopping: heard SIGTERM")
    os.kill(stopped, signal.SIGTERM)
    parent.let_go()
    running.wait_for_line(f"process {stopped} ended with 0")
    hear_times(running, READY, 3)

    assert running.err.count("finished") == 1
    assert left(sql) == 0


def test_a_pause_grows_while_processes_die_young(parent):
    # No process counts as steady, however slow the machine is.
    limits = {
        "INITIAL_BACKOFF_SECONDS": 0.1,
        "MAX_BACKOFF_SECONDS": 0.4,
        "STABLE_AFTER_SECONDS": 600.0,
    }
    running = parent.start(WAITS, "-p", "1", ready=1, **limits)

    for number in range(1, 6):
        hear_times(running, READY, number)
        os.kill(children(running)[-1], signal.SIGKILL)
    hear_times(running, READY, 6)

    pauses = re.findall(r"another one comes in (\S+) s", running.err)
    assert pauses == ["0.1", "0.2", "0.4", "0.4", "0.4"]


def test_a_process_that_served_for_long_is_started_again_at_once(parent):
    running = parent.start(
        WAITS, "-p", "1", ready=1, STABLE_AFTER_SECONDS=0.0, INITIAL_BACKOFF_SECONDS=60.0
    )

    os.kill(children(running)[0], signal.SIGKILL)
    hear_times(running, READY, 2)

    assert "another one comes" not in running.err


def test_what_no_process_can_start_with_ends_the_parent(programs):
    done = programs.run_to_end("-p", "3")

    assert done.code == 1
    assert "graphile-worker: no tasks: make a folder ./tasks" in done.err
    assert "no worker process could start: giving up" in done.err


def test_the_parent_ends_with_the_code_of_its_children(parent, programs, sql):
    parent.write(NOTES)
    sql.run("insert into :schema.migrations (id, breaking) values (1000000, true)")

    done = programs.run_to_end("-p", "2")

    assert done.code == 57
    assert "giving up" in done.err


def test_flags_that_make_no_sense_are_told_once(parent, programs):
    parent.write(NOTES)

    done = programs.run_to_end("-p", "3", "-j", "0")

    assert done.code == 1
    assert done.err == "graphile-worker: concurrency must be an integer from 1, got 0\n"


def test_the_parent_gives_up_when_nothing_can_start_any_more(parent):
    port = free_port()
    flags = ["-p", "2", "--health-port", str(port)]
    running = parent.start(
        WAITS, *flags, MAX_FAILED_STARTS=2, INITIAL_BACKOFF_SECONDS=0.05, MAX_BACKOFF_SECONDS=0.1
    )
    eventually(lambda: status(port, "/readyz") == 200, "the parent knows that they work")
    parent.write("raise SystemExit('broken by a deploy')")

    for pid in children(running):
        os.kill(pid, signal.SIGKILL)

    assert running.end() == 1
    assert running.err.count("broken by a deploy") >= 2 * 2
    assert "no worker process could start: giving up" in running.err


def test_a_machine_that_can_make_no_process_for_a_moment_is_asked_again(parent):
    # As while a new environment is put in place of the old one.
    running = parent.start(
        WAITS,
        "-p",
        "1",
        ready=1,
        INITIAL_BACKOFF_SECONDS=0.2,
        MAX_BACKOFF_SECONDS=0.2,
        build_child_command=HINDERED,
    )

    os.kill(children(running)[0], signal.SIGKILL)
    hear_times(running, "no process could be made: ", 3)
    parent.let_go()
    hear_times(running, READY, 2)

    assert running.stop(signal.SIGTERM) == 0


def test_one_process_that_can_start_is_enough_to_go_on(parent, programs):
    parent.write(
        """
        import os

        try:
            os.close(os.open("taken", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            raise SystemExit("there is one already")

        async def task(payload): ...
        """
    )
    running = programs.python(
        command_with({"INITIAL_BACKOFF_SECONDS": 0.05, "MAX_BACKOFF_SECONDS": 0.05}), "-p", "2"
    )
    running.wait_for_line(READY)

    # One more than would be enough without the one that works.
    hear_times(running, "there is one already", 6)

    assert running.is_running
    assert "giving up" not in running.err


# Replacing


def test_after_max_jobs_a_process_is_replaced_and_no_job_is_lost(parent, sql):
    flags = ["-p", "2", "--max-jobs", "5", "--poll-interval", "100"]
    running = parent.start(NOTES, *flags, INITIAL_BACKOFF_SECONDS=0.05, MAX_BACKOFF_SECONDS=0.1)
    first = children(running)

    def replaced() -> bool:
        jobs.extend(add(sql, 1))
        time.sleep(0.05)
        return not any(map(is_alive, first))

    jobs: list[int] = []
    eventually(replaced, "both were replaced")
    eventually(lambda: left(sql) == 0, "all jobs are done")

    runs = sql.run("select job, process from runs")
    assert Counter(job for job, _ in runs) == dict.fromkeys(jobs, 1)
    assert all(count >= 5 for pid, count in Counter(pid for _, pid in runs).items() if pid in first)
    assert "has run as many jobs as it should: it is replaced" in running.err
    assert running.stop(signal.SIGTERM) == 0
    assert "ended by" not in running.err


def test_a_process_goes_on_until_the_one_after_it_works(parent, sql):
    running = parent.start(
        NOTES,
        "-p",
        "1",
        "--max-jobs",
        "1",
        ready=1,
        INITIAL_BACKOFF_SECONDS=0.1,
        MAX_BACKOFF_SECONDS=0.1,
    )
    [old] = children(running)
    parent.write("raise SystemExit('broken by a deploy')")
    add(sql, 1)
    # More often than would be too often if nobody worked.
    hear_times(running, "broken by a deploy", 7)
    add(sql, 1)
    eventually(lambda: left(sql) == 0, "all jobs are done")
    assert {pid for (pid,) in sql.run("select process from runs")} == {old}

    parent.write(NOTES)
    eventually(lambda: not is_alive(old), "it is replaced")

    assert running.is_running
    assert running.err.count(READY) == 2


def test_a_process_that_is_replaced_finishes_its_job_however_long_that_takes(parent, sql):
    running = parent.start(
        WAITS, "-p", "1", "-j", "2", "--max-jobs", "2", ready=1, INITIAL_BACKOFF_SECONDS=0.05
    )
    [old] = children(running)
    add(sql, 2)
    hear_times(running, READY, 2)
    # As long as a stop would take to ask the task to give up.
    time.sleep(6)
    still_running = is_alive(old)
    parent.let_go()
    eventually(lambda: not is_alive(old), "it has ended")

    assert still_running
    assert running.err.count("finished") == 2
    assert left(sql) == 0


def test_a_process_that_holds_too_much_memory_is_replaced(parent, sql):
    running = parent.start(LEAKS, "-p", "2", "--max-memory", "300", INITIAL_BACKOFF_SECONDS=0.05)
    first = children(running)

    [job] = add(sql, 1, '{"megabytes": 400}')
    eventually(lambda: left(sql) == 0, "the job is done")
    leaking = sql.value("select process from runs where job = $1", job)
    told = running.wait_for_line(f"process {leaking} holds")
    hear_times(running, READY, 3)
    eventually(lambda: not is_alive(leaking), "it has ended")

    # It may have been looked at while it grew.
    assert int(told.split(" MB")[0].split()[-1]) > 300
    assert told.endswith("it is replaced")
    assert [is_alive(pid) for pid in first if pid != leaking] == [True]
    assert len(children(running)) == 3


def test_processes_are_replaced_one_at_a_time(parent, sql):
    running = parent.start(
        LEAKS,
        "-p",
        "3",
        "--max-memory",
        "1",
        ready=3,
        INITIAL_BACKOFF_SECONDS=0.3,
        SupervisedProcess=TELLING,
    )

    # Each process exceeds the limit from its start.
    eventually(lambda: told(running).count("finish") >= 6, "six are replaced", PATIENCE)

    order = told(running)
    assert order[:3] == ["start"] * 3
    replacing = order[3:]
    assert replacing[0::2] == ["start"] * len(replacing[0::2])
    assert replacing[1::2] == ["finish"] * len(replacing[1::2])
    assert running.stop(signal.SIGTERM) == 0


def test_memory_is_for_a_parent_to_look_at(parent, programs):
    parent.write(NOTES)

    done = programs.run_to_end("--max-memory", "100")

    assert done.code == 1
    assert done.err == (
        "graphile-worker: --max-memory needs a parent that looks: add --processes 1\n"
    )


def test_where_memory_cannot_be_read_the_parent_says_so_and_goes_on(parent):
    running = parent.start(
        NOTES,
        *("-p", "1", "--max-memory", "1"),
        ready=1,
        MEMORY_CHECK_INTERVAL_SECONDS=0.05,
        read_resident_bytes="lambda pid: None",
    )

    running.wait_for_line("--max-memory: nobody can say here how much memory a process holds")
    time.sleep(0.3)

    assert running.err.count("nobody can say") == 1
    assert running.is_running


@pytest.mark.parametrize("how", [[], ["--once"]], ids=["until then", "once"])
def test_alone_a_worker_ends_after_max_jobs(parent, programs, sql, how):
    parent.write(NOTES)
    add(sql, 5)

    done = programs.run_to_end("--max-jobs", "3", *how)

    assert done.code == 0
    assert sql.value("select count(*) from runs") == 3
    assert (left(sql), locked(sql)) == (2, 0)


@pytest.mark.parametrize("flag", ["-p", "--max-jobs", "--max-memory"])
def test_less_than_one_is_no_number(programs, flag):
    done = programs.run_to_end(flag, "0")

    assert done.code == 2


# Stopping


@pytest.mark.every_version
def test_the_first_signal_lets_running_jobs_finish_in_all_processes(parent, sql):
    running = parent.start(WAITS, "-p", "2")
    add(sql, 2)
    hear_times(running, "begun in", 2)
    add(sql, 1)

    running.signal(signal.SIGTERM)
    hear_times(running, "stopping: heard SIGTERM", 2)
    still_running = running.is_running
    parent.let_go()

    assert still_running
    assert running.end() == 0
    assert running.err.count("finished") == 2
    assert (left(sql), locked(sql)) == (1, 0)
    assert not any(map(is_alive, children(running)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_other_signals_stop_the_processes_too(parent, number):
    running = parent.start(WAITS, "-p", "2")

    assert running.stop(number) == 0
    assert running.err.count(f"stopping: heard {number.name}") == 2


def test_the_second_signal_hands_back_at_once(parent, sql):
    running = parent.start(NEVER_ENDS, "-p", "2")
    add(sql, 2)
    hear_times(running, "begun", 2)

    running.signal(signal.SIGTERM)
    hear_times(running, "stopping: heard SIGTERM", 2)
    began = time.monotonic()
    code = running.stop(signal.SIGTERM)

    assert code == 128 + signal.SIGTERM
    assert time.monotonic() - began < AT_THE_SECOND_SIGNAL
    assert (left(sql), locked(sql)) == (2, 0)
    assert sql.run("select distinct attempts from :schema.jobs") == [(0,)]


def test_a_signal_for_the_whole_group_is_one_signal(parent, programs, sql):
    """As Ctrl-C on a terminal sends it, and as systemd does to all processes of a service."""
    parent.write(WAITS)
    running = in_a_group(programs, "-p", "2")
    add(sql, 2)
    hear_times(running, "begun in", 2)

    os.killpg(running.pid, signal.SIGINT)
    hear_times(running, "stopping: heard SIGINT", 2)
    # Time for a second one to arrive, if there were any.
    time.sleep(0.5)
    parent.let_go()

    assert running.end() == 0
    assert running.err.count("finished") == 2
    assert left(sql) == 0


def test_a_second_signal_for_the_whole_group_is_the_second(parent, programs, sql):
    parent.write(NEVER_ENDS)
    running = in_a_group(programs, "-p", "2")
    add(sql, 2)
    hear_times(running, "begun", 2)

    os.killpg(running.pid, signal.SIGINT)
    hear_times(running, "stopping: heard SIGINT", 2)
    os.killpg(running.pid, signal.SIGINT)

    assert running.end() == 128 + signal.SIGINT
    assert (left(sql), locked(sql)) == (2, 0)


def test_a_signal_before_there_is_a_worker_ends_all_at_once(parent, programs):
    parent.write("import time\nprint('importing', flush=True)\ntime.sleep(120)\n")
    running = programs.command("-p", "2")
    eventually(lambda: running.out.count("importing") == 2, "both import their tasks")

    code = running.stop(signal.SIGTERM)

    assert code == 128 + signal.SIGTERM
    assert "Traceback" not in running.err


def test_once_a_signal_lets_running_jobs_finish(parent, programs, sql):
    parent.write(WAITS)
    add(sql, 3)
    running = programs.command("-p", "2", "--once")
    hear_times(running, "begun in", 2)

    running.signal(signal.SIGTERM)
    hear_times(running, "stopping: heard SIGTERM", 2)
    parent.let_go()

    assert running.end() == 0
    assert (left(sql), locked(sql)) == (1, 0)


AT_ONCE = ("--cancel-after", "0s", "--shutdown-timeout", "0s")


def test_a_process_may_take_as_long_for_its_stop_as_it_was_told(parent, sql):
    running = parent.start(
        WAITS, "-p", "1", "--shutdown-timeout", "1h", ready=1, STOP_GRACE_SECONDS=-3599.5
    )
    add(sql, 1)
    running.wait_for_line("begun in")

    # Half a second: what the parent reckons with is the hour that it was given.
    assert running.stop(signal.SIGTERM) == 1
    assert "did not stop: it is killed" in running.err


def test_a_process_without_a_limit_for_its_stop_is_waited_for(parent, sql):
    running = parent.start(
        WAITS, "-p", "1", "--shutdown-timeout", "off", ready=1, STOP_GRACE_SECONDS=-3600.0
    )
    add(sql, 1)
    running.wait_for_line("begun in")

    running.signal(signal.SIGTERM)
    running.wait_for_line("stopping: heard SIGTERM")
    parent.let_go()

    assert running.end() == 0
    assert "it is killed" not in running.err


def test_a_process_that_does_not_stop_is_killed(parent, sql):
    # Enough for the other one, which has nothing to do, on a busy machine too.
    running = parent.start(BLOCKS, "-p", "2", *AT_ONCE, STOP_GRACE_SECONDS=SPARE)
    add(sql, 1)
    running.wait_for_line("begun")

    code = running.stop(signal.SIGTERM)

    assert code == 1
    assert running.err.count("did not stop: it is killed") == 1
    assert not any(map(is_alive, children(running)))


def test_a_process_that_does_not_stop_at_once_when_it_should_is_killed(parent, sql):
    running = parent.start(BLOCKS, "-p", "1", ready=1, KILL_TIMEOUT_SECONDS=1.0)
    add(sql, 1)
    running.wait_for_line("begun")

    running.signal(signal.SIGTERM)
    running.wait_for_line("stopping 1 processes")
    code = running.stop(signal.SIGTERM)

    assert code == 128 + signal.SIGTERM
    assert "did not stop: it is killed" in running.err


# Without a parent


def test_processes_whose_parent_is_killed_finish_their_jobs_and_stop(parent, sql):
    running = parent.start(WAITS, "-p", "2")
    add(sql, 2)
    hear_times(running, "begun in", 2)
    add(sql, 1)

    running.signal(signal.SIGKILL)
    hear_times(running, "the parent process is gone: stopping", 2)
    hear_times(running, "stopping: heard SIGTERM", 2)
    still_running = [is_alive(pid) for pid in children(running)]
    parent.let_go()
    eventually(lambda: not any(map(is_alive, children(running))), "all have ended")

    assert still_running == [True, True]
    assert running.err.count("finished") == 2
    assert (left(sql), locked(sql)) == (1, 0)


def test_a_process_whose_parent_is_killed_ends_though_its_loop_is_blocked(parent, sql):
    running = parent.start(BLOCKS, "-p", "1", *AT_ONCE, ready=1, STOP_GRACE_SECONDS=0.5)
    add(sql, 1)
    running.wait_for_line("begun")

    running.signal(signal.SIGKILL)

    eventually(lambda: not any(map(is_alive, children(running))), "it has ended")


def test_a_line_that_is_none_is_refused(parent, programs):
    parent.write(NOTES)

    done = programs.run_to_end("--parent", "77")

    assert done.code == 1
    assert done.err == "graphile-worker: --parent is for processes of --processes\n"


# Health


def test_the_parent_answers_for_the_health_of_all(parent, sql):
    port = free_port()
    flags = ["-p", "2", "--health-port", str(port)]
    running = parent.start(WAITS, *flags, MAX_LOOP_DELAY_SECONDS=8.0, INITIAL_BACKOFF_SECONDS=12.0)
    eventually(lambda: status(port, "/readyz") == 200, "all are ready")
    assert status(port, "/livez") == 200

    stopped, killed = children(running)
    os.kill(stopped, signal.SIGSTOP)
    eventually(lambda: status(port, "/livez") == 503, "one stands still")
    os.kill(stopped, signal.SIGCONT)
    eventually(lambda: status(port, "/livez") == 200, "it goes on")
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: status(port, "/readyz") == 503, "one is not there")
    eventually(lambda: status(port, "/readyz") == 200, "there is another")


def test_a_port_that_is_taken_is_told_once_and_starts_nothing(parent, programs):
    parent.write(WAITS)
    with socket.create_server(("", 0)) as taken:
        done = programs.run_to_end("-p", "2", "--health-port", str(taken.getsockname()[1]))

    assert done.code == 1
    assert done.err.startswith("graphile-worker: --health-port ")
    assert children(done) == []


# Words of this file


def command_with(limits: Mapping[str, float | str]) -> str:
    """A program that is the command, with other values for these names, wherever they are used."""
    lines = [
        f"for module in (parent_pipe, process_set, supervised_process, supervisor):\n"
        f"        if hasattr(module, {name!r}):\n"
        f"            module.{name} = {value}"
        for name, value in limits.items()
    ]
    return COMMAND.replace("LIMITS", "\n    ".join(lines))


def unindented(text: str) -> str:
    return re.sub(r"^    ", "", text, flags=re.MULTILINE)


def in_a_group(programs: Programs, *flags: str) -> Program:
    """The command in a group of its own, as a shell starts it."""
    running = programs.start([INSTALLED, *flags], {}, start_new_session=True)
    hear_times(running, READY, 2)
    return running


def told(running: Program) -> list[str]:
    """For each thing that the parent told a child, in order: did that one start or finish?"""
    words = re.findall(r"^told \d+ (.+)$", running.out, re.MULTILINE)
    return ["start" if word == "nothing" else "finish" for word in words]


def hear_times(running: Program, words: str, times: int) -> None:
    """Until these words were said so often."""

    def look() -> bool:
        heard = running.err.count(words) >= times
        assert heard or running.is_running or alive_children(running), running.err
        return heard

    eventually(look, f"{words!r}, {times} times; it said:\n{running.err}", PATIENCE)


def alive_children(running: Program) -> list[int]:
    return [pid for pid in children(running) if is_alive(pid)]


def children(running: Program) -> list[int]:
    """The processes that it has started so far."""
    return [int(pid) for pid in re.findall(r"started process (\d+)", running.err)]


def is_alive(pid: int) -> bool:
    try:
        # Its name, which may hold anything, ends with the last bracket.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def sockets_of_the_internet(pid: int) -> list[str]:
    """Those that a process has open."""
    tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table.splitlines()]
    known = {f"socket:[{fields[9]}]" for fields in lines}
    links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    return [link for link in links if link in known]


def add(sql: Sql, count: int, payload: str = "{}") -> list[int]:
    """Add so many jobs; their ids."""
    found = sql.run(
        "select (:schema.add_job('it', $1::json)).id from generate_series(1, $2::int)",
        *(payload, count),
    )
    return [job for (job,) in found]


def left(sql: Sql) -> int:
    found: int = sql.value("select count(*) from :schema.jobs")
    return found


def locked(sql: Sql) -> int:
    found: int = sql.value("select count(*) from :schema.jobs where locked_at is not null")
    return found
