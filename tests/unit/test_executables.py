"""Programs as tasks: their input, their output and their end."""

import asyncio
import os
import pickle
import resource
import signal
import textwrap
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from graphile_worker import ExecutableFailed, ExecutableOptions, Job, Logger
from graphile_worker._discovery.executables import Executable, Timings, build_environment
from graphile_worker._support.error_format import make_printable
from graphile_worker._worker.cancellation import Cancellation
from graphile_worker._worker.pool import ShutdownTimings
from graphile_worker.tasks import make_positional_task
from tests.support.jobs import make_job
from tests.support.processes import is_process_alive
from tests.support.recorder import wait_until
from tests.support.tiers import size

pytestmark = pytest.mark.feature("F121")


class Lines:
    """A logger that records its lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.logger = Logger(lambda scope: lambda level, text, meta: self._record(level, text))

    def of(self, level: str) -> list[str]:
        return [text for each, text in self.lines if each == level]

    def _record(self, level: str, text: str) -> None:
        self.lines.append((level, text))


class Context:
    """The part of a job context that an executable uses."""

    def __init__(self, job: Job, logger: Logger) -> None:
        self.job = job
        self.logger = logger
        self.cancellation = Cancellation()

    @property
    def cancelled(self) -> bool:
        return self.cancellation.is_requested

    async def wait_cancelled(self) -> bool:
        return await self.cancellation.wait(lambda: self.cancelled, None)


class ProgramFolder:
    """Writes programs and runs them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.timings = Timings()
        self.log = Lines()
        self.context = Context(make_job(), self.log.logger)

    def program(self, text: str, mode: int = 0o755, **options: Any) -> Executable:
        path = self.folder / "program"
        path.write_text(textwrap.dedent(text).lstrip())
        path.chmod(mode)
        return Executable("program", path, ExecutableOptions(**options), self.timings)

    async def run(self, text: str, payload: Any = None, **options: Any) -> None:
        await self.program(text, **options)(payload, self.context)  # type: ignore[arg-type]

    def start(self, text: str, **options: Any) -> "asyncio.Task[None]":
        return asyncio.create_task(self.run(text, **options))

    async def failure(self, text: str, **options: Any) -> ExecutableFailed:
        with pytest.raises(ExecutableFailed) as failed:
            await self.run(text, **options)
        return failed.value

    async def pids(self, name: str = "pids", count: int = 1) -> list[int]:
        """Wait until a program has written this number of process ids, and return them."""
        path = self.folder / name
        await wait_until(lambda: path.exists() and path.read_text().count("\n") == count)
        return [int(line) for line in path.read_text().splitlines()]


@pytest.fixture
def program_folder(tmp_path) -> ProgramFolder:
    return ProgramFolder(tmp_path)


async def wait_until_gone(pids: list[int]) -> None:
    await wait_until(lambda: not any(map(is_process_alive, pids)))


# Input and environment


async def test_a_program_reads_its_payload_until_end_of_file(program_folder):
    await program_folder.run(
        f"#!/bin/sh\ncat > {program_folder.folder}/stdin\n", {"to": "ädä", "n": 1.0}
    )

    assert (
        program_folder.folder / "stdin"
    ).read_bytes() == '{"payload":{"to":"ädä","n":1}}'.encode()


async def test_a_large_payload_arrives_whole(program_folder):
    await program_folder.run(
        f"#!/bin/sh\nsleep 0.1\ncat > {program_folder.folder}/stdin\n", "x" * 5_000_000
    )

    assert (program_folder.folder / "stdin").stat().st_size == 5_000_000 + len('{"payload":""}')


@pytest.mark.parametrize("text", ["#!/bin/true\n", "#!/bin/sh\nexec <&-\nsleep 0.2\n"])
async def test_a_program_may_ignore_its_payload(program_folder, text):
    await program_folder.run(text, "x" * 5_000_000)


def test_the_environment_describes_the_job(monkeypatch):
    monkeypatch.setattr(os, "environ", {"PATH": "/bin", "GRAPHILE_WORKER_JOB_KEY": "of another"})
    job = make_job(key="kéy", attempts=3, max_attempts=4, priority=-5, run_at="-0.000001")

    assert build_environment(job, ExecutableOptions()) == {
        "PATH": "/bin",
        "GRAPHILE_WORKER_PAYLOAD_FORMAT": "json",
        "GRAPHILE_WORKER_TASK_IDENTIFIER": "resize",
        "GRAPHILE_WORKER_JOB_ID": "7",
        "GRAPHILE_WORKER_JOB_KEY": "kéy",
        "GRAPHILE_WORKER_JOB_ATTEMPTS": "3",
        "GRAPHILE_WORKER_JOB_MAX_ATTEMPTS": "4",
        "GRAPHILE_WORKER_JOB_PRIORITY": "-5",
        "GRAPHILE_WORKER_JOB_RUN_AT": "1969-12-31T23:59:59.999Z",
    }


def test_a_job_without_a_key_has_no_key_variable_even_if_inherited(monkeypatch):
    monkeypatch.setattr(os, "environ", {"GRAPHILE_WORKER_JOB_KEY": "of another"})

    assert "GRAPHILE_WORKER_JOB_KEY" not in build_environment(make_job(), ExecutableOptions())


@pytest.mark.parametrize(
    ("environment", "is_logged"), [("inherit", True), ("minimal", False)], ids=str
)
async def test_a_minimal_environment_contains_no_secrets(
    program_folder, monkeypatch, environment, is_logged
):
    monkeypatch.setenv("DATABASE_URL", "canary")
    monkeypatch.setenv("PGPASSWORD", "canary")
    monkeypatch.setenv("TZ", "Asia/Tokyo")

    await program_folder.run("#!/bin/sh\nenv\n", environment=environment)

    logged = program_folder.log.of("info")
    assert ("DATABASE_URL=canary" in logged) is is_logged
    assert ("PGPASSWORD=canary" in logged) is is_logged
    assert "TZ=Asia/Tokyo" in logged
    assert "GRAPHILE_WORKER_JOB_ID=7" in logged


async def test_a_program_inherits_no_open_files(program_folder):
    await program_folder.run("#!/bin/sh\nls /proc/$$/fd\n")

    # The shell reads the script, too.
    assert set(program_folder.log.of("info")) - {"10", "255"} == {"0", "1", "2"}


# Exit


async def test_exit_code_0_is_success(program_folder):
    await program_folder.run("#!/bin/sh\necho to nobody >&2\nexit 0\n")

    assert program_folder.log.lines == [("error", "to nobody")]


async def test_another_exit_code_fails_the_job_with_its_last_output(program_folder):
    failed = await program_folder.failure("#!/bin/sh\nseq 100 >&2\nexit 3\n")

    assert failed.code == 3
    assert failed.signal is None
    assert failed.last_output.split("\n") == [str(number) for number in range(81, 101)]
    assert str(failed).startswith("program ended with exit code 3; last output:\n81\n82\n")


async def test_a_signal_fails_the_job_with_its_name(program_folder):
    failed = await program_folder.failure("#!/bin/sh\nkill -SEGV $$\n")

    assert failed.code is None
    assert failed.signal == "SIGSEGV"
    assert str(failed) == "program ended with signal SIGSEGV"


async def test_the_last_output_is_limited(program_folder):
    failed = await program_folder.failure(
        "#!/bin/sh\nhead -c 100000 /dev/zero | tr '\\0' x >&2\nexit 1\n"
    )

    assert failed.last_output == "…" + 2000 * "x"


def test_executable_failed_can_be_pickled():
    failed = ExecutableFailed("resize", "ended with exit code 3", 3, None, "boo")

    copy = pickle.loads(pickle.dumps(failed))

    assert (copy.code, copy.last_output, str(copy)) == (3, "boo", str(failed))


@pytest.mark.parametrize(
    ("text", "mode", "hint"),
    [
        ("echo hello\n", 0o755, "Exec format error: its first line must name its interpreter"),
        (
            "#!/no/such/interpreter\n",
            0o755,
            "No such file or directory: the program, or the interpreter",
        ),
        ("#!/bin/sh\n", 0o644, "Permission denied: the program, or the interpreter"),
    ],
)
async def test_a_program_that_cannot_be_started_fails_the_job_with_the_reason(
    program_folder, text, mode, hint
):
    program = program_folder.program(text, mode)

    with pytest.raises(ExecutableFailed, match=f"program could not be started: {hint}") as failed:
        await program(None, program_folder.context)
    assert failed.value.code is None


async def test_a_program_is_ended_at_its_timeout(program_folder):
    failed = await program_folder.failure(
        "#!/bin/sh\necho waiting >&2\nexec sleep 600\n", timeout=timedelta(seconds=5)
    )

    assert failed.signal == "SIGTERM"
    assert str(failed) == "program was ended after 0:00:05; last output:\nwaiting"


# Processes of a program

FORKS = """
    #!/bin/sh
    for i in $(seq 20); do
      sleep 600 &
      echo $! >> pids
    done
    {then}
"""


async def test_all_processes_of_a_program_end_with_it(program_folder, monkeypatch):
    monkeypatch.chdir(program_folder.folder)

    await program_folder.run(textwrap.dedent(FORKS).format(then="exit 0"))

    await wait_until_gone(await program_folder.pids(count=20))


async def test_a_cancelled_program_gets_sigterm_and_its_processes_are_killed(
    program_folder, monkeypatch
):
    monkeypatch.chdir(program_folder.folder)
    program_folder.timings = Timings(cleanup_grace=600)
    then = "trap 'echo bye > bye; exit 1' TERM; touch ready; while :; do sleep 0.05; done"
    running = program_folder.start(textwrap.dedent(FORKS).format(then=then))
    await wait_until((program_folder.folder / "ready").exists)

    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    assert (program_folder.folder / "bye").exists()
    await wait_until_gone(await program_folder.pids(count=20))


async def test_a_program_that_ignores_sigterm_is_killed(program_folder, monkeypatch):
    monkeypatch.chdir(program_folder.folder)
    running = program_folder.start(
        "#!/bin/sh\ntrap '' TERM\necho $$ > pids\nwhile :; do sleep 0.05; done\n"
    )
    pids = await program_folder.pids()

    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    await wait_until_gone(pids)


def test_a_program_is_killed_before_the_worker_stops_waiting_for_it():
    assert Timings().cleanup_grace < ShutdownTimings().cleanup_timeout_seconds


async def test_a_program_that_is_cancelled_twice_is_killed_immediately(program_folder, monkeypatch):
    monkeypatch.chdir(program_folder.folder)
    program_folder.timings = Timings(cleanup_grace=600)
    running = program_folder.start(
        "#!/bin/sh\ntrap 'touch asked' TERM\necho $$ > pids\nwhile :; do sleep 0.05; done\n"
    )
    pids = await program_folder.pids()

    running.cancel()
    await wait_until((program_folder.folder / "asked").exists)
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    await wait_until_gone(pids)


async def test_a_program_is_ended_when_the_worker_cancels_the_job(program_folder, monkeypatch):
    monkeypatch.chdir(program_folder.folder)
    running = program_folder.start("#!/bin/sh\necho $$ > pids\nexec sleep 600\n")
    pids = await program_folder.pids()

    program_folder.context.cancellation.request()

    with pytest.raises(asyncio.CancelledError):
        await running
    await wait_until_gone(pids)


async def test_the_worker_does_not_wait_for_a_daemon_that_keeps_the_output_open(
    program_folder, monkeypatch
):
    monkeypatch.chdir(program_folder.folder)
    program_folder.timings = Timings(output_drain=0.2)

    # Not before the daemon has left the group.
    await program_folder.run(
        "#!/bin/sh\nsetsid sh -c 'echo $$ > pids; exec sleep 600' &\n"
        "until [ -s pids ]; do sleep 0.02; done\n"
    )

    [pid] = await program_folder.pids()
    os.kill(pid, signal.SIGKILL)


async def test_the_worker_closes_all_pipes(program_folder):
    await program_folder.run("#!/bin/true\n")
    before = len(os.listdir("/proc/self/fd"))

    await program_folder.run("#!/bin/true\n")
    await program_folder.failure("no shebang")

    assert len(os.listdir("/proc/self/fd")) == before


# Output


async def test_each_output_line_is_one_log_line(program_folder):
    await program_folder.run("#!/bin/sh\nprintf 'one\\n\\ntwo\\r\\nthree'; printf 'oh\\n' >&2\n")

    assert program_folder.log.of("info") == ["one", "", "two", "three"]
    assert program_folder.log.of("error") == ["oh"]


async def test_terminal_control_characters_are_escaped(program_folder):
    await program_folder.run("#!/bin/sh\nprintf 'a\\033[31mb\\tc\\rd \\377 \\000 e\\n'\n")

    assert program_folder.log.of("info") == ["a\\x1b[31mb\tc\\rd \ufffd \\x00 e"]


def test_bidirectional_and_line_breaking_characters_are_escaped():
    assert make_printable("a\u202eb\u2028c\x85d\udcffé😀") == "a\\u202eb\\u2028c\\x85d\\udcffé😀"


async def test_a_character_may_arrive_in_two_chunks(program_folder):
    await program_folder.run("#!/bin/sh\nprintf '\\303'; sleep 0.1; printf '\\244\\n'\n")

    assert program_folder.log.of("info") == ["ä"]


async def test_a_long_line_is_split(program_folder):
    await program_folder.run("#!/bin/sh\nhead -c 10000 /dev/zero | tr '\\0' x\n")

    assert [len(line) for line in program_folder.log.of("info")] == [4096, 4096, 10000 - 2 * 4096]


async def test_output_beyond_the_maximum_is_not_logged(program_folder):
    await program_folder.run("#!/bin/sh\nseq 1000; echo no more >&2\n", max_output_bytes=1050)

    assert program_folder.log.of("info") == [str(number) for number in range(1, 11)]
    assert program_folder.log.of("warning") == ["output exceeds 1050 bytes, the rest is not logged"]
    assert program_folder.log.of("error") == []


async def test_the_last_output_is_kept_beyond_the_maximum(program_folder):
    failed = await program_folder.failure("#!/bin/sh\nseq 1000 >&2; exit 1\n", max_output_bytes=0)

    assert program_folder.log.of("error") == []
    assert failed.last_output.endswith("\n999\n1000")


# Several times what the worker may grow by.
MUCH_OUTPUT_BYTES = size(gate=150_000_000, nightly=1_000_000_000)


@pytest.mark.single_version
@pytest.mark.timeout(180)
@pytest.mark.parametrize("lines", ["yes", "cat /dev/zero"])
async def test_a_gigabyte_of_output_needs_no_memory_and_never_blocks_the_program(
    program_folder, lines, figure
):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()

    await program_folder.run(f"#!/bin/sh\n{lines} | head -c {MUCH_OUTPUT_BYTES}\n")

    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    logged_chars = sum(len(line) for line in program_folder.log.of("info"))
    assert grown < 30_000
    assert (
        0 < logged_chars <= 1024 * 1024 * 4
    )  # Escapes are longer than the characters that they replace.
    figure(
        f"{MUCH_OUTPUT_BYTES / 1e9} GB of output by `{lines}` was read in "
        f"{time.monotonic() - began:.1f} s, the worker grew by {grown} kB"
    )


async def test_a_logger_that_raises_does_not_leave_the_program_running(program_folder, monkeypatch):
    monkeypatch.chdir(program_folder.folder)

    def broken(scope: Any) -> Any:
        def log(level: str, text: str, meta: Any) -> None:
            raise RuntimeError("the disk is full")

        return log

    program_folder.context.logger = Logger(broken)
    running = program_folder.start("#!/bin/sh\necho $$ > pids\necho hello\nexec sleep 600\n")

    with pytest.raises(ExceptionGroup):
        await running
    await wait_until_gone(await program_folder.pids())


def test_a_program_runs_on_the_event_loop(program_folder):
    task = make_positional_task("program", program_folder.program("#!/bin/true\n"))

    assert task.runs_on_loop
    assert task.signature.build_call_arguments("payload", "context") == (["payload", "context"], {})
