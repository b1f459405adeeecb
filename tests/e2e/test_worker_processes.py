"""`--processes`: real worker processes under one parent, with real signals and jobs."""

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
from tests.support.processes import is_process_alive as is_alive
from tests.support.sql import Sql
from tests.support.tiers import size

# On a busy machine each process takes seconds to start.
pytestmark = [pytest.mark.feature("F304"), pytest.mark.timeout(180)]
TIMEOUT_SECONDS = 90.0

# From the second signal to the exit.
FORCED_EXIT_SECONDS = size(gate=35.0, nightly=8.0)

# The time in which an idle process stops.
IDLE_STOP_SECONDS = size(gate=15.0, nightly=6.0)

PROCESSES = size(gate=2, nightly=3)
KILLS = size(gate=3, nightly=5)
REPLACED = size(gate=2, nightly=6)

# The command with shorter limits. Its children run the same program.
COMMAND = """
    from graphile_worker._cli.main import main
    from graphile_worker._cli.supervisor import (
        parent_pipe, process_set, supervised_process, supervisor
    )

    LIMITS

    main()
"""

# Records its process, and takes a moment, so that all processes get jobs.
RECORDS = """
    import asyncio
    import os

    async def task(payload, ctx):
        await ctx.query("insert into runs values (%s, %s)", [ctx.job.id, os.getpid()])
        await asyncio.sleep(0.01)
"""

# Ends when a file called "go" exists.
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

# Blocks the event loop.
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


# Without a file called "go", only the first process can be started.
STARTS_ONCE = """(
        lambda line, real=supervised_process.build_child_command, made=[]: made.append(line) or (
            real(line) if len(made) == 1 or __import__("os").path.exists("go") else ["/nowhere"]
        )
    )"""


# Prints the messages of the parent: empty at the start of a process, one byte to the old one when
# the new one is ready.
PRINTS_MESSAGES = """type("PrintsMessages", (process_set.SupervisedProcess,), {
                "send": lambda self, message, real=process_set.SupervisedProcess.send: (
                    print("sent", self.pid, message.decode() or "nothing", flush=True),
                    real(self, message),
                )
            })"""


class Parent:
    """The command with `--processes`, in a folder with one task, `it`."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    def start(self, task: str, *flags: str, ready: int = 2, **limits: float | str) -> Program:
        """Start the parent, and wait until `ready` children claim jobs."""
        self.write(task)
        parent = self._programs.python(command_with(limits), *flags)
        wait_for_lines(parent, READY, ready)
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
    running = parent.start(RECORDS, "-p", "3", ready=3)
    jobs = add(sql, 300)

    eventually(lambda: left(sql) == 0, "all jobs are done")
    code = running.stop(signal.SIGTERM)

    runs = sql.run("select job, process from runs")
    assert code == 0
    assert Counter(job for job, _ in runs) == dict.fromkeys(jobs, 1)
    assert {process for _, process in runs} == set(children(running))
    assert len(children(running)) == 3


def test_the_parent_imports_no_tasks_and_has_no_connection(parent):
    running = parent.start("print('imported', flush=True)\n" + unindented(RECORDS), "-p", "2")

    assert running.out.count("imported") == 2
    assert list_tcp_sockets(running.pid) == []
    assert list_tcp_sockets(children(running)[0]) != []


def test_the_children_install_the_schema(tmp_path, empty_database):
    with Programs.for_database(empty_database, tmp_path) as programs:
        programs.write("tasks/it.py", WAITS)
        running = programs.without_fork.command("-p", str(PROCESSES))
        wait_for_lines(running, READY, PROCESSES)

        assert running.stop(signal.SIGTERM) == 0


def test_once_each_process_runs_the_ready_jobs_and_the_parent_exits_after_them(
    parent, programs, sql
):
    parent.write(RECORDS)
    jobs = add(sql, 100)

    done = programs.run_to_end("-p", "2", "--once")

    assert done.code == 0
    assert Counter(job for (job,) in sql.run("select job from runs")) == dict.fromkeys(jobs, 1)
    assert [is_alive(pid) for pid in children(done)] == [False, False]


def test_once_the_parent_exits_with_the_code_of_a_failed_child(parent, programs):
    parent.write(RECORDS)

    done = programs.run_to_end("-p", "2", "--once", DATABASE_URL="postgres://127.0.0.1:1/none")

    assert done.code == 1
    assert len(children(done)) == 2
    assert "graphile-worker: " in done.err


# Restarting


@pytest.mark.every_version
def test_a_killed_process_is_restarted_and_its_job_recovered(parent, sql):
    running = parent.start(WAITS, "-p", "2", "--lease-duration", "8s", INITIAL_BACKOFF_SECONDS=0.1)
    [job] = add(sql, 1)
    killed = int(running.wait_for_line("begun in").split()[-1])

    os.kill(killed, signal.SIGKILL)
    running.wait_for_line(f"process {killed} was killed by SIGKILL")
    wait_for_lines(running, "begun in", 2)
    parent.let_go()
    eventually(lambda: left(sql) == 0, "the job is done")
    wait_for_lines(running, READY, 3)
    code = running.stop(signal.SIGTERM)

    assert code == 0
    assert running.err.count(f"completed job {job}") == 1
    assert len(children(running)) == 3


def test_a_process_stopped_by_a_user_finishes_its_job_and_is_restarted(parent, sql):
    running = parent.start(WAITS, "-p", "2", INITIAL_BACKOFF_SECONDS=0.1)
    add(sql, 1)
    stopped = int(running.wait_for_line("begun in").split()[-1])

    # Only the parent can end its graceful shutdown.
    os.kill(stopped, signal.SIGTERM)
    os.kill(stopped, signal.SIGTERM)
    running.wait_for_line("stopping: received SIGTERM")
    os.kill(stopped, signal.SIGTERM)
    parent.let_go()
    running.wait_for_line(f"process {stopped} exited with 0")
    wait_for_lines(running, READY, 3)

    assert running.err.count("finished") == 1
    assert left(sql) == 0


def test_the_backoff_grows_while_processes_exit_quickly(parent):
    # No process counts as stable, even on a slow machine.
    limits = {
        "INITIAL_BACKOFF_SECONDS": 0.1,
        "MAX_BACKOFF_SECONDS": 0.4,
        "STABLE_AFTER_SECONDS": 600.0,
    }
    running = parent.start(WAITS, "-p", "1", ready=1, **limits)

    for number in range(1, KILLS + 1):
        wait_for_lines(running, READY, number)
        os.kill(children(running)[-1], signal.SIGKILL)
    wait_for_lines(running, "starting another process", KILLS)

    pauses = re.findall(r"starting another process in (\S+) s", running.err)
    assert pauses == ["0.1", "0.2", *["0.4"] * (KILLS - 2)]


def test_a_process_that_ran_long_is_restarted_at_once(parent):
    running = parent.start(
        WAITS, "-p", "1", ready=1, STABLE_AFTER_SECONDS=0.0, INITIAL_BACKOFF_SECONDS=60.0
    )

    os.kill(children(running)[0], signal.SIGKILL)
    wait_for_lines(running, READY, 2)

    assert "starting another process" not in running.err


def test_the_parent_exits_if_no_process_can_start(programs):
    done = programs.run_to_end("-p", str(PROCESSES))

    assert done.code == 1
    assert "graphile-worker: no tasks configured. Create a folder ./tasks" in done.err
    assert "no worker process could start, exiting" in done.err


def test_the_parent_exits_with_the_code_of_its_children(parent, programs, sql):
    parent.write(RECORDS)
    sql.run("insert into :schema.migrations (id, breaking) values (1000000, true)")

    done = programs.run_to_end("-p", "2")

    assert done.code == 57
    assert "no worker process could start, exiting" in done.err


def test_invalid_flags_are_reported_once(parent, programs):
    parent.write(RECORDS)

    done = programs.run_to_end("-p", "3", "--poll-interval", "0")

    assert done.code == 1
    assert done.err == (
        "graphile-worker: poll_interval must be at least 0:00:00.001000, got 0:00:00\n"
    )


def test_the_parent_gives_up_when_no_process_can_start_anymore(parent):
    port = free_port()
    flags = ["-p", "2", "--health-port", str(port)]
    running = parent.start(
        WAITS, *flags, MAX_FAILED_STARTS=2, INITIAL_BACKOFF_SECONDS=0.05, MAX_BACKOFF_SECONDS=0.1
    )
    eventually(lambda: status(port, "/readyz") == 200, "the parent is ready")
    parent.write("raise SystemExit('broken by a deploy')")

    for pid in children(running):
        os.kill(pid, signal.SIGKILL)

    assert running.end() == 1
    assert running.err.count("broken by a deploy") >= 2 * 2
    assert "no worker process could start, exiting" in running.err


def test_a_process_that_cannot_be_started_is_retried(parent):
    # As during the replacement of a virtual environment.
    running = parent.start(
        WAITS,
        "-p",
        "1",
        ready=1,
        INITIAL_BACKOFF_SECONDS=0.2,
        MAX_BACKOFF_SECONDS=0.2,
        build_child_command=STARTS_ONCE,
    )

    os.kill(children(running)[0], signal.SIGKILL)
    wait_for_lines(running, "process failed to start, retrying: ", 3)
    parent.let_go()
    wait_for_lines(running, READY, 2)

    assert running.stop(signal.SIGTERM) == 0


def test_the_parent_continues_while_one_process_can_start(parent, programs):
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
    limits = {
        "INITIAL_BACKOFF_SECONDS": 0.05,
        "MAX_BACKOFF_SECONDS": 0.05,
        "MAX_FAILED_STARTS": 2,
    }
    running = programs.python(command_with(limits), "-p", "2")
    running.wait_for_line(READY)

    # One more than enough for the parent to give up without the ready process.
    wait_for_lines(running, "there is one already", 3)

    assert running.is_running
    assert "no worker process could start, exiting" not in running.err


# Replacing


def test_after_max_jobs_a_process_is_replaced_and_no_job_is_lost(parent, sql):
    flags = ["-p", "2", "--max-jobs", "5", "--poll-interval", "100"]
    running = parent.start(RECORDS, *flags, INITIAL_BACKOFF_SECONDS=0.05, MAX_BACKOFF_SECONDS=0.1)
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
    assert "ran max_jobs jobs" in running.err
    assert running.stop(signal.SIGTERM) == 0
    assert "killed by" not in running.err


def test_a_process_continues_until_its_replacement_is_ready(parent, sql):
    running = parent.start(
        RECORDS,
        "-p",
        "1",
        "--max-jobs",
        "1",
        ready=1,
        INITIAL_BACKOFF_SECONDS=0.1,
        MAX_BACKOFF_SECONDS=0.1,
        MAX_FAILED_STARTS=2,
    )
    [old] = children(running)
    parent.write("raise SystemExit('broken by a deploy')")
    add(sql, 1)
    # More often than enough for the parent to give up without a ready process.
    wait_for_lines(running, "broken by a deploy", 4)
    add(sql, 1)
    eventually(lambda: left(sql) == 0, "all jobs are done")
    assert {pid for (pid,) in sql.run("select process from runs")} == {old}

    parent.write(RECORDS)
    eventually(lambda: not is_alive(old), "the old process exits")

    assert running.is_running
    assert running.err.count(READY) == 2


def test_a_replaced_process_finishes_a_long_job(parent, sql):
    running = parent.start(
        WAITS, "-p", "1", "-j", "2", "--max-jobs", "2", ready=1, INITIAL_BACKOFF_SECONDS=0.05
    )
    [old] = children(running)
    add(sql, 2)
    wait_for_lines(running, READY, 2)
    # Longer than cancel_after.
    time.sleep(6)
    still_running = is_alive(old)
    parent.let_go()
    eventually(lambda: not is_alive(old), "it has ended")

    assert still_running
    assert running.err.count("finished") == 2
    assert left(sql) == 0


def test_a_process_above_max_memory_is_replaced(parent, sql):
    running = parent.start(LEAKS, "-p", "2", "--max-memory", "300", INITIAL_BACKOFF_SECONDS=0.05)
    first = children(running)

    [job] = add(sql, 1, '{"megabytes": 400}')
    eventually(lambda: left(sql) == 0, "the job is done")
    leaking = sql.value("select process from runs where job = $1", job)
    line = running.wait_for_line(f"replacing process {leaking} (uses")
    wait_for_lines(running, READY, 3)
    eventually(lambda: not is_alive(leaking), "it has ended")

    # The parent may have read the memory while it grew.
    assert int(line.split(" MB")[0].split()[-1]) > 300
    assert [is_alive(pid) for pid in first if pid != leaking] == [True]
    assert len(children(running)) == 3


def test_processes_are_replaced_one_at_a_time(parent, sql):
    running = parent.start(
        LEAKS,
        "-p",
        str(PROCESSES),
        "--max-memory",
        "1",
        ready=PROCESSES,
        INITIAL_BACKOFF_SECONDS=0.3,
        SupervisedProcess=PRINTS_MESSAGES,
    )

    # Each process exceeds the limit from its start.
    eventually(
        lambda: list_messages(running).count("finish") >= REPLACED,
        f"{REPLACED} are replaced",
        TIMEOUT_SECONDS,
    )

    order = list_messages(running)
    assert order[:PROCESSES] == ["start"] * PROCESSES
    replacing = order[PROCESSES:]
    assert replacing[0::2] == ["start"] * len(replacing[0::2])
    assert replacing[1::2] == ["finish"] * len(replacing[1::2])
    assert running.stop(signal.SIGTERM) == 0


def test_max_memory_needs_processes(parent, programs):
    parent.write(RECORDS)

    done = programs.run_to_end("--max-memory", "100")

    assert done.code == 1
    assert done.err == ("graphile-worker: --max-memory needs a supervisor. Add --processes 1.\n")


def test_unreadable_memory_is_logged_once(parent):
    running = parent.start(
        RECORDS,
        *("-p", "1", "--max-memory", "1"),
        ready=1,
        MEMORY_CHECK_INTERVAL_SECONDS=0.05,
        read_resident_bytes="lambda pid: None",
    )

    running.wait_for_line("--max-memory is ignored: process memory cannot be read on this platform")
    time.sleep(0.3)

    assert running.err.count("cannot be read") == 1
    assert running.is_running


@pytest.mark.parametrize("how", [[], ["--once"]], ids=["worker", "once"])
def test_a_single_worker_exits_after_max_jobs(parent, programs, sql, how):
    parent.write(RECORDS)
    add(sql, 5)

    done = programs.run_to_end("--max-jobs", "3", *how)

    assert done.code == 0
    assert sql.value("select count(*) from runs") == 3
    assert (left(sql), locked(sql)) == (2, 0)


@pytest.mark.parametrize("flag", ["-p", "--max-jobs", "--max-memory"])
def test_numbers_below_one_are_rejected(programs, flag):
    done = programs.run_to_end(flag, "0")

    assert done.code == 2


# Stopping


@pytest.mark.every_version
def test_the_first_signal_lets_running_jobs_finish_in_all_processes(parent, sql):
    running = parent.start(WAITS, "-p", "2")
    add(sql, 2)
    wait_for_lines(running, "begun in", 2)
    add(sql, 1)

    running.signal(signal.SIGTERM)
    wait_for_lines(running, "stopping: received SIGTERM", 2)
    still_running = running.is_running
    parent.let_go()

    assert still_running
    assert running.end() == 0
    assert running.err.count("finished") == 2
    assert (left(sql), locked(sql)) == (1, 0)
    assert not any(map(is_alive, children(running)))


OTHER_SIGNALS = size(gate=[signal.SIGINT], nightly=[signal.SIGINT, signal.SIGHUP])


@pytest.mark.parametrize("number", OTHER_SIGNALS, ids=lambda number: number.name)
def test_other_signals_stop_the_processes_too(parent, number):
    running = parent.start(WAITS, "-p", "2")

    assert running.stop(number) == 0
    assert running.err.count(f"stopping: received {number.name}") == 2


def test_the_second_signal_releases_jobs_at_once(parent, sql):
    running = parent.start(NEVER_ENDS, "-p", "2")
    add(sql, 2)
    wait_for_lines(running, "begun", 2)

    running.signal(signal.SIGTERM)
    wait_for_lines(running, "stopping: received SIGTERM", 2)
    started_at = time.monotonic()
    code = running.stop(signal.SIGTERM)

    assert code == 128 + signal.SIGTERM
    assert time.monotonic() - started_at < FORCED_EXIT_SECONDS
    assert (left(sql), locked(sql)) == (2, 0)
    assert sql.run("select distinct attempts from :schema.jobs") == [(0,)]


def test_a_signal_to_the_process_group_counts_once(parent, programs, sql):
    """As Ctrl-C on a terminal sends it, and as systemd does to all processes of a service."""
    parent.write(WAITS)
    running = in_a_group(programs, "-p", "2")
    add(sql, 2)
    wait_for_lines(running, "begun in", 2)

    os.killpg(running.pid, signal.SIGINT)
    wait_for_lines(running, "stopping: received SIGINT", 2)
    # Time for a second signal to arrive.
    time.sleep(0.5)
    parent.let_go()

    assert running.end() == 0
    assert running.err.count("finished") == 2
    assert left(sql) == 0


def test_a_second_signal_to_the_process_group_is_the_second(parent, programs, sql):
    parent.write(NEVER_ENDS)
    running = in_a_group(programs, "-p", "2")
    add(sql, 2)
    wait_for_lines(running, "begun", 2)

    os.killpg(running.pid, signal.SIGINT)
    wait_for_lines(running, "stopping: received SIGINT", 2)
    os.killpg(running.pid, signal.SIGINT)

    assert running.end() == 128 + signal.SIGINT
    assert (left(sql), locked(sql)) == (2, 0)


def test_a_signal_during_the_start_ends_all_processes_at_once(parent, programs):
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
    wait_for_lines(running, "begun in", 2)

    running.signal(signal.SIGTERM)
    wait_for_lines(running, "stopping: received SIGTERM", 2)
    parent.let_go()

    assert running.end() == 0
    assert (left(sql), locked(sql)) == (1, 0)


AT_ONCE = ("--cancel-after", "0s", "--shutdown-timeout", "0s")


def test_a_stopping_process_has_shutdown_timeout_before_it_is_killed(parent, sql):
    running = parent.start(
        WAITS, "-p", "1", "--shutdown-timeout", "1h", ready=1, STOP_GRACE_SECONDS=-3599.5
    )
    add(sql, 1)
    running.wait_for_line("begun in")

    # The timeout is the hour minus the grace time: half a second.
    assert running.stop(signal.SIGTERM) == 1
    assert "did not stop in time, killing it" in running.err


def test_without_shutdown_timeout_the_parent_waits(parent, sql):
    running = parent.start(
        WAITS, "-p", "1", "--shutdown-timeout", "off", ready=1, STOP_GRACE_SECONDS=-3600.0
    )
    add(sql, 1)
    running.wait_for_line("begun in")

    running.signal(signal.SIGTERM)
    running.wait_for_line("stopping: received SIGTERM")
    parent.let_go()

    assert running.end() == 0
    assert "killing it" not in running.err


def test_a_process_that_does_not_stop_is_killed(parent, sql):
    # Enough for the idle process, on a busy machine too.
    running = parent.start(BLOCKS, "-p", "2", *AT_ONCE, STOP_GRACE_SECONDS=IDLE_STOP_SECONDS)
    add(sql, 1)
    running.wait_for_line("begun")

    code = running.stop(signal.SIGTERM)

    assert code == 1
    assert running.err.count("did not stop in time, killing it") == 1
    assert not any(map(is_alive, children(running)))


def test_a_process_that_ignores_the_second_signal_is_killed(parent, sql):
    running = parent.start(BLOCKS, "-p", "1", ready=1, KILL_TIMEOUT_SECONDS=1.0)
    add(sql, 1)
    running.wait_for_line("begun")

    running.signal(signal.SIGTERM)
    running.wait_for_line("stopping 1 processes")
    code = running.stop(signal.SIGTERM)

    assert code == 128 + signal.SIGTERM
    assert "did not stop in time, killing it" in running.err


# Without a parent


def test_orphaned_processes_finish_their_jobs_and_stop(parent, sql):
    running = parent.start(WAITS, "-p", "2")
    add(sql, 2)
    wait_for_lines(running, "begun in", 2)
    add(sql, 1)

    running.signal(signal.SIGKILL)
    wait_for_lines(running, "parent process is gone, stopping", 2)
    wait_for_lines(running, "stopping: received SIGTERM", 2)
    still_running = [is_alive(pid) for pid in children(running)]
    parent.let_go()
    eventually(lambda: not any(map(is_alive, children(running))), "all have ended")

    assert still_running == [True, True]
    assert running.err.count("finished") == 2
    assert (left(sql), locked(sql)) == (1, 0)


def test_an_orphaned_process_exits_although_its_loop_is_blocked(parent, sql):
    running = parent.start(BLOCKS, "-p", "1", *AT_ONCE, ready=1, STOP_GRACE_SECONDS=0.5)
    add(sql, 1)
    running.wait_for_line("begun")

    running.signal(signal.SIGKILL)

    eventually(lambda: not any(map(is_alive, children(running))), "it has ended")


def test_an_invalid_parent_pipe_is_rejected(parent, programs):
    parent.write(RECORDS)

    done = programs.run_to_end("--parent", "77")

    assert done.code == 1
    assert done.err == "graphile-worker: --parent is internal. Use --processes.\n"


# Health


def test_the_health_of_the_parent_covers_all_processes(parent, sql):
    port = free_port()
    flags = ["-p", "2", "--health-port", str(port)]
    running = parent.start(WAITS, *flags, MAX_LOOP_DELAY_SECONDS=8.0, INITIAL_BACKOFF_SECONDS=12.0)
    eventually(lambda: status(port, "/readyz") == 200, "all are ready")
    assert status(port, "/livez") == 200

    stopped, killed = children(running)
    os.kill(stopped, signal.SIGSTOP)
    eventually(lambda: status(port, "/livez") == 503, "one is stopped")
    os.kill(stopped, signal.SIGCONT)
    eventually(lambda: status(port, "/livez") == 200, "it runs again")
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: status(port, "/readyz") == 503, "one is missing")
    eventually(lambda: status(port, "/readyz") == 200, "another one is ready")


def test_a_health_port_in_use_is_reported_once_and_starts_no_process(parent, programs):
    parent.write(WAITS)
    with socket.create_server(("", 0)) as taken:
        done = programs.run_to_end("-p", "2", "--health-port", str(taken.getsockname()[1]))

    assert done.code == 1
    assert done.err.startswith("graphile-worker: cannot listen on ")
    assert children(done) == []


# Helpers


def command_with(limits: Mapping[str, float | str]) -> str:
    """The command as a program, with other values for constants of its modules."""
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
    """Start the command in its own process group, as a shell does."""
    running = programs.start([INSTALLED, *flags], {}, start_new_session=True)
    wait_for_lines(running, READY, 2)
    return running


def list_messages(running: Program) -> list[str]:
    """The messages of the parent in order: to a process that starts, or to one that finishes."""
    messages = re.findall(r"^sent \d+ (.+)$", running.out, re.MULTILINE)
    return ["start" if message == "nothing" else "finish" for message in messages]


def wait_for_lines(running: Program, text: str, times: int) -> None:
    """Wait until a text was logged this number of times."""

    def has_lines() -> bool:
        is_logged = running.err.count(text) >= times
        assert is_logged or running.is_running or alive_children(running), running.err
        return is_logged

    eventually(has_lines, f"{text!r}, {times} times, in the log:\n{running.err}", TIMEOUT_SECONDS)


def alive_children(running: Program) -> list[int]:
    return [pid for pid in children(running) if is_alive(pid)]


def children(running: Program) -> list[int]:
    """The processes that the parent has started."""
    return [int(pid) for pid in re.findall(r"started process (\d+)", running.err)]


def list_tcp_sockets(pid: int) -> list[str]:
    tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table.splitlines()]
    known = {f"socket:[{fields[9]}]" for fields in lines}
    links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    return [link for link in links if link in known]


def add(sql: Sql, count: int, payload: str = "{}") -> list[int]:
    """Add jobs and return their ids."""
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
