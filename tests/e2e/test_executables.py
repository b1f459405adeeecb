"""Executables run by the command, on each of its event loops."""

import signal

import pytest

from tests.support.processes import eventually, is_process_alive

pytestmark = pytest.mark.feature("F121")

PAYLOAD = '{"payload":""}'
SAYS = """\
    #!/bin/sh
    printf 'hello \\033[31m\\n'
    wc -c
    echo oh no >&2
    exit 3
"""
WAITS = """\
    #!/bin/sh
    trap '' TERM
    sleep 600 &
    printf '%s\\n' $$ $! > pids.new
    mv pids.new pids
    wait
    sleep 600
"""


@pytest.fixture(params=["uvloop", "asyncio"])
def loop(request) -> str:
    name: str = request.param
    return name


@pytest.mark.every_version
def test_its_output_is_in_the_log_and_its_exit_code_in_the_row(programs, sql, loop):
    programs.write("tasks/say.sh", SAYS).chmod(0o755)
    job = sql.value("select id from :schema.add_job('say', to_json(repeat('x', 1000000)))")

    done = programs.run_to_end("--once", "--loop", loop)

    assert done.code == 0
    assert f"say{{{job}}})] INFO: hello \\x1b[31m" in done.err
    assert f"say{{{job}}})] INFO: {len(PAYLOAD) + 1_000_000}" in done.err
    assert f"say{{{job}}})] ERROR: oh no" in done.err
    [(last_error,)] = sql.run("select last_error from :schema._private_jobs")
    assert last_error.startswith("ExecutableFailed: say ended with exit code 3; last output: oh no")


def test_two_signals_release_the_job_and_leave_no_process(programs, sql, loop):
    programs.write("tasks/wait", WAITS).chmod(0o755)
    sql.run("select from :schema.add_job('wait')")
    worker = programs.worker("--loop", loop)
    written = programs.folder / "pids"
    eventually(written.exists, "the program runs")

    worker.signal(signal.SIGTERM)
    worker.wait_for_line("SIGTERM")
    worker.stop()

    assert sql.run("select attempts, locked_by from :schema._private_jobs") == [(0, None)]
    pids = [int(pid) for pid in written.read_text().split()]
    eventually(
        lambda: not any(map(is_process_alive, pids)), "the program and what it started are gone"
    )
