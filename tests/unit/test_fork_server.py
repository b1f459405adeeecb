"""A program that the fork server starts behaves as one that starts for real."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import fork_server
from tests.support.processes import Program, Programs, eventually, is_process_alive

pytestmark = pytest.mark.skipif(not fork_server.is_enabled(), reason="GW_FORKS=off")

STATE = """
    import json, os, resource, signal, sys, threading, time

    json.dump(
        {
            "argv": sys.argv[1:],
            "orig_argv": sys.orig_argv,
            "main": [__name__, __file__, __spec__, sys.modules["__main__"].__dict__ is globals()],
            "tests": [name for name in sys.modules if name.split(".")[0] == "tests"],
            "path": sys.path,
            "folder": os.getcwd(),
            "environment": dict(os.environ),
            "zone": time.tzname,
            "group": os.getpgid(0),
            "session": os.getsid(0),
            "descriptors": sorted(os.listdir("/proc/self/fd"), key=int)[:-1],
            "inheritable": [os.get_inheritable(number) for number in range(3)],
            "signals": {
                number.name: str(signal.getsignal(number)) for number in signal.valid_signals()
                if isinstance(number, signal.Signals)
            },
            "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
            "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
            "umask": os.umask(0o22),
            "threads": threading.active_count(),
            "streams": [
                [each.mode, each.encoding, each.errors, each.line_buffering, each.newlines]
                for each in (sys.stdin, sys.stdout, sys.stderr)
            ],
            "flags": str(sys.flags),
            "warnings": sys.warnoptions,
        },
        sys.stdout,
        default=str,
    )
"""


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    with Programs(tmp_path) as programs:
        yield programs


def is_forked(pid: int) -> bool:
    """Whether its parent is not this process."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    return int(stat.split()[1]) != os.getpid()


def test_a_forked_program_sees_what_a_real_one_sees(programs):
    # A shell script in place of the interpreter sets PWD.
    folder = str(programs.folder)
    variables = {"TZ": "FAR-5:30", "COLOR": "blue", "HOME": None, "PWD": folder}
    forked, real = (
        each.python(STATE, "a", "ä b", **variables) for each in (programs, programs.without_fork)
    )

    assert (forked.end(), real.end(), forked.err, real.err) == (0, 0, "", "")
    assert json.loads(forked.out) == json.loads(real.out)


def test_a_forked_program_can_keep_a_fork_of_itself_as_fork_server(programs):
    root = str(Path(__file__).parents[2])
    folder = str(programs.folder)
    command = [str(programs.write("state.py", STATE)), "a", "ä b"]
    program = programs.python(
        f"""
        import os, sys
        from pathlib import Path
        from subprocess import DEVNULL

        sys.path.insert(1, {root!r})
        os.environ["PYTHONPATH"] = {root!r}

        from tests.support.fork_server import OwnForkServer

        with OwnForkServer(os.environ) as forks:
            assert forks.suits(os.environ) and not forks.suits({{}})
            options = dict(cwd=Path.cwd(), env=os.environ, stdin=DEVNULL, stdout=sys.stdout)
            started = forks.start({command!r}, stderr=sys.stderr, **options)
            missing = forks.start(["missing.py"], stderr=DEVNULL, **options)
            sys.exit(10 * started.wait() + missing.wait())
        """,
        PWD=folder,
    )
    variables = {"PYTHONPATH": root, "PWD": folder}
    real = programs.without_fork.start([sys.executable, *command], variables)

    assert (program.end(), real.end(), program.err, real.err) == (1, 0, "", "")
    assert json.loads(program.out) == json.loads(real.out)


@pytest.mark.parametrize("has_own_session", [False, True])
def test_a_process_of_a_forked_supervisor_sees_what_that_of_a_real_one_sees(
    programs, has_own_session
):
    programs.write("state.py", STATE + "\n    sys.exit(os.getppid() % 100)")
    script = f"""
        import os, subprocess, sys

        _, inherited = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "state.py", "a", "ä b"],
            pass_fds=[inherited],
            stdin=subprocess.DEVNULL,
            start_new_session={has_own_session},
        )
        assert process.wait() == os.getpid() % 100
        print("", process.pid if {has_own_session} else os.getpgid(0))
    """
    variables = {"PWD": str(programs.folder)}
    forked, real = (
        each.python(script, "-p", **variables) for each in (programs, programs.without_fork)
    )

    assert (forked.end(), real.end(), forked.err, real.err) == (0, 0, "", "")
    state, group = parse_state(forked)
    assert state["group"] == group
    for each in (state, expected := parse_state(real)[0]):
        del each["group"], each["session"]
    assert state == expected


def parse_state(program: Program) -> tuple[dict[str, Any], int]:
    """What a process of a program found, and its expected process group."""
    state, _, group = program.out.rpartition(" ")
    return json.loads(state), int(group)


def test_a_program_is_forked_unless_a_real_start_is_asked_for(programs):
    script = "import time; time.sleep(60)"

    assert is_forked(programs.python(script).pid)
    assert not is_forked(programs.without_fork.python(script).pid)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LD_PRELOAD", ""),
        ("PSYCOPG_IMPL", "python"),
        ("PYTHONUNBUFFERED", "1"),
    ],
)
def test_a_variable_that_is_read_at_the_start_needs_a_real_start(programs, variable, value):
    program = programs.python("import time; time.sleep(60)", **{variable: value})

    assert not is_forked(program.pid)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("pass", 0),
        ("raise SystemExit", 0),
        ("raise SystemExit(57)", 57),
        ("raise SystemExit(-1)", 255),
        ("raise SystemExit('enough')", 1),
        ("import os; os._exit(3)", 3),
        ("import os; os.abort()", -signal.SIGABRT),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
    ],
)
def test_the_exit_code_is_that_of_the_program(programs, script, code):
    assert programs.python(script).end() == code


def test_a_signal_ends_a_program(programs):
    program = programs.python("import time; time.sleep(60)")

    assert program.is_running
    assert program.stop(signal.SIGKILL) == -signal.SIGKILL
    assert not is_process_alive(program.pid)


def test_an_uncaught_error_is_a_traceback_and_code_1(programs):
    program = programs.python("raise LookupError('nothing there')")

    assert program.end() == 1
    assert program.err.startswith("Traceback (most recent call last):\n")
    assert program.err.endswith("LookupError: nothing there\n")


def test_a_program_waits_for_its_threads_and_runs_its_exit_handlers(programs):
    program = programs.python(
        """
        import atexit, sys, threading, time

        def finish():
            time.sleep(0.1)
            print("thread")

        atexit.register(print, "exit handler")
        threading.Thread(target=finish).start()
        sys.exit(4)
        """
    )

    assert program.end() == 4
    assert program.out == "thread\nexit handler\n"


def test_the_streams_are_those_that_are_given(programs, tmp_path):
    script = programs.write("echo.py", "import sys; print(input()); print('e', file=sys.stderr)")
    (tmp_path / "in").write_text("from a file\n")
    with (tmp_path / "in").open() as stdin, (tmp_path / "out").open("w") as stdout:
        command = [sys.executable, str(script)]
        program = programs.start(command, {}, stdin=stdin, stdout=stdout, stderr=subprocess.STDOUT)

        assert program.end() == 0
    assert (tmp_path / "out").read_text() in ("e\nfrom a file\n", "from a file\ne\n")


def test_two_programs_share_nothing(programs):
    script = """
        import logging, os, random, sys, time

        import graphile_worker

        was_marked = hasattr(graphile_worker, "mark")
        graphile_worker.mark = os.environ["MARK"] = "set"
        logging.basicConfig()
        print(was_marked, sys.argv, len(os.listdir("/proc/self/fd")), random.random(), flush=True)
        time.sleep(60)
    """
    first = programs.python(script, "1")
    eventually(lambda: first.out, "the first program runs")
    second = programs.python(script, "2")
    eventually(lambda: second.out, "the second program runs")

    assert first.out.startswith("False ")
    assert second.out.startswith("False ")
    # Standard streams, and the folder that is being listed.
    assert first.out.split()[3] == second.out.split()[3] == "4"
    assert first.out.split()[4] != second.out.split()[4]


def test_the_fork_server_and_its_programs_end_with_the_test_process(tmp_path):
    program = textwrap.dedent(
        f"""
        import time
        from pathlib import Path

        from tests.support.processes import Programs

        script = "import os, time; print(os.getppid(), flush=True); time.sleep(60)"
        program = Programs(Path({str(tmp_path)!r})).python(script)
        while not program.out:
            time.sleep(0.01)
        print(program.pid, program.out, flush=True)
        time.sleep(60)
        """
    )
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        forked, server = map(int, tests.stdout.readline().split())
        assert is_process_alive(forked)
        assert is_process_alive(server)
        tests.kill()

    eventually(lambda: not is_process_alive(forked) and not is_process_alive(server), "both end")


def test_a_request_may_be_larger_than_the_buffer_of_a_socket(programs):
    arguments = ["x" * 100_000] * 5

    program = programs.python("import sys; print(sum(map(len, sys.argv[1:])))", *arguments)

    assert (program.end(), program.out) == (0, "500000\n")
