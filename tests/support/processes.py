"""Start programs in a folder, read their output, send signals, and end them with the test."""

import copy
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self, TypeVar

from tests.conftest import TestDatabase
from tests.support import fork_server
from tests.support.fork_server import ForkedProcess

INSTALLED = str(Path(sys.executable).parent / "graphile-worker")
READY = "worker connected and looking for jobs"

# Environment variables that would change what a program does, if the user has set them.
CLEARED_VARIABLES = re.compile(
    r"^(PG|DATABASE_URL$|GRAPHILE_|NO_LOG_SUCCESS$|NO_COLOR$|PYTHONUNBUFFERED$)"
)

# Seconds. Only a bug takes longer.
TIMEOUT_SECONDS = 40.0

# Between two looks of `eventually`.
MIN_POLL_SECONDS = 0.02
MAX_POLL_SECONDS = 0.2

T = TypeVar("T")


def eventually(look: Callable[[], T], what: str, within: float = TIMEOUT_SECONDS) -> T:
    """Poll `look` until its result is true, and return it."""
    started_at = time.monotonic()
    while True:
        found = look()
        if found:
            return found
        waited = time.monotonic() - started_at
        if waited > within:
            raise AssertionError(f"not within {within} s: {what}")
        # Looking costs CPU time, so a test that waits long looks less often.
        time.sleep(min(max(MIN_POLL_SECONDS, waited / 10), MAX_POLL_SECONDS))


def is_process_alive(pid: int | str) -> bool:
    """Return whether a process runs; one that has ended and was not reaped does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    # The name of the process comes before, and may contain anything.
    return status.rpartition(")")[2].split()[0] != "Z"


def start_process(
    command: Sequence[str],
    *,
    can_fork: bool = True,
    frees_modules: bool = False,
    preloaded: tuple[str, ...] = (),
    **options: Any,
) -> subprocess.Popen[str] | ForkedProcess:
    """Start a program as `subprocess.Popen` does, by a fork where that makes no difference."""
    given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    whole = {**given, **options}
    if can_fork and fork_server.is_enabled() and _is_forkable(command, whole, preloaded):
        server = fork_server.fork_server(_inherited_environment(), preloaded)
        if server.suits(whole["env"]):
            script = command if command[0] == INSTALLED else command[1:]
            return server.start(script, frees_modules=frees_modules, **whole)
    return subprocess.Popen(command, **whole, text=True, encoding="utf-8", errors="replace")


def _inherited_environment() -> dict[str, str]:
    """The environment of the tests without what would change a program."""
    return {name: value for name, value in os.environ.items() if not CLEARED_VARIABLES.match(name)}


def _is_forkable(
    command: Sequence[str], options: Mapping[str, Any], preloaded: Sequence[str]
) -> bool:
    if set(options) - {"start_new_session"} != {"cwd", "env", "stdin", "stdout", "stderr"}:
        return False
    is_script = command[0] == sys.executable and "".join(command[1:2]).endswith(".py")
    is_script |= [*command[:2]] == [sys.executable, "-m"] and command[2] in preloaded
    return (is_script or command[0] == INSTALLED) and not any(
        _is_terminal(options[each]) for each in ("stdin", "stdout", "stderr")
    )


def _is_terminal(stream: int | IO[Any]) -> bool:
    # Constants of subprocess are negative.
    return os.isatty(stream) if isinstance(stream, int) else stream.isatty()


class Program:
    """A running program; its output is read as it comes."""

    def __init__(self, process: subprocess.Popen[str] | ForkedProcess) -> None:
        self._process = process
        self._out = _PipeReader(self._process.stdout)
        self._err = _PipeReader(self._process.stderr)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def out(self) -> str:
        """All that it wrote to standard output so far."""
        return self._out.text

    @property
    def err(self) -> str:
        """All that it wrote to standard error so far."""
        return self._err.text

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    @property
    def is_running(self) -> bool:
        return self.code is None

    def wait_for_line(self, words: str, within: float = TIMEOUT_SECONDS) -> str:
        """The first line on standard error with these words, once it is there."""

        def look() -> str | None:
            # Asked before looking, as its last words may come just before its end.
            ended = not self.is_running and self._err.is_closed
            for line in self.err.splitlines():
                if words in line:
                    return line
            assert not ended, f"it ended without saying {words!r}:\n{self.err}"
            return None

        try:
            found = eventually(look, f"the program prints {words!r}", within)
        except AssertionError as error:
            error.add_note(f"its output:\n{self.err[-4000:]}")
            raise
        assert found is not None
        return found

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self, within: float = TIMEOUT_SECONDS) -> int:
        """Its exit code, once it has ended by itself."""
        code = self._process.wait(within)
        self._out.join()
        self._err.join()
        return code

    def stop(self, number: int = 15, within: float = TIMEOUT_SECONDS) -> int:
        """Send a signal; its exit code."""
        self.signal(number)
        return self.end(within)

    def kill(self) -> None:
        if self.is_running:
            self._process.kill()
        self.end()


class Programs:
    """Starts programs in a folder, with variables that say which database; kills those left."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        self._variables = variables
        self._started: list[Program] = []
        self._can_fork = True
        self._frees_modules = False
        self._preloaded: tuple[str, ...] = ()

    @classmethod
    def for_database(cls, database: TestDatabase, folder: Path) -> Self:
        """Programs whose environment names this database and its schema."""
        return cls(folder, DATABASE_URL=database.url, GRAPHILE_WORKER_SCHEMA=database.schema)

    @property
    def without_fork(self) -> Self:
        """The same programs, none of them started by a fork."""
        programs = copy.copy(self)
        programs._can_fork = False
        return programs

    @property
    def with_whole_end(self) -> Self:
        """The same programs, also if forked with the whole end of an interpreter."""
        programs = copy.copy(self)
        programs._frees_modules = True
        return programs

    def preloading(self, *modules: str) -> Self:
        """The same programs, forked from a process that has imported these modules too.

        A fork can also run one of them as `python -m MODULE`.
        """
        programs = copy.copy(self)
        programs._preloaded = modules
        return programs

    def write(self, name: str, text: str) -> Path:
        """A file in the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    def command(self, *arguments: str, **variables: str | None) -> Program:
        """The installed command; a variable that is None is not set."""
        return self.start([INSTALLED, *arguments], variables)

    def worker(self, *arguments: str, **variables: str | None) -> Program:
        """The installed command, once it looks for jobs."""
        program = self.command(*arguments, **variables)
        program.wait_for_line(READY)
        return program

    def python(self, script: str, *arguments: str, **variables: str | None) -> Program:
        """A small program of our own."""
        path = self.write("program.py", script)
        return self.start([sys.executable, str(path), *arguments], variables)

    def run_to_end(self, *arguments: str, **variables: str | None) -> Program:
        """The installed command, once it has ended by itself."""
        program = self.command(*arguments, **variables)
        program.end()
        return program

    def start(
        self, command: Sequence[str], variables: Mapping[str, str | None], **options: Any
    ) -> Program:
        environment = self._environment(variables)
        process = start_process(
            command,
            can_fork=self._can_fork,
            frees_modules=self._frees_modules,
            preloaded=self._preloaded,
            cwd=self.folder,
            env=environment,
            **options,
        )
        program = Program(process)
        self._started.append(program)
        return program

    def _environment(self, variables: Mapping[str, str | None]) -> dict[str, str]:
        given: dict[str, str | None] = {**_inherited_environment(), **self._variables, **variables}
        return {name: value for name, value in given.items() if value is not None}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for program in self._started:
            program.kill()


class _PipeReader:
    """Reads a pipe to its end in a thread, so that who writes never waits for who reads."""

    def __init__(self, pipe: IO[str] | None) -> None:
        self._pipe = pipe
        self._lines: list[str] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    @property
    def text(self) -> str:
        return "".join(self._lines)

    @property
    def is_closed(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> None:
        self._thread.join(TIMEOUT_SECONDS)

    def _listen(self) -> None:
        if self._pipe is None:
            return
        with self._pipe:
            for line in self._pipe:
                self._lines.append(line)
