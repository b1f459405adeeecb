"""A process that has imported the package and forks a copy of itself for each program of a test.

Starting `graphile-worker` costs about 0.7 s of CPU time, nearly all of it for imports. A fork of a
process that has done those imports costs about 25 ms. The test process is the client. It starts
one fork server at the first use. The server ends when the test process does, even if it is killed.

For each program the client sends three standard streams and a connection. The fork reads from the
connection what to run, and the fork server writes to it the process id and, at the end, the status.

A program differs from a real one in this: its parent is the fork server, all programs share one
hash seed, and `/proc/PID/cmdline` and `/proc/PID/environ` are those of the fork server. If it ends
without an error, it does not free the objects of its modules: that would copy all that it shares
with the fork server. A test of how programs end asks for it with `frees_modules`.

A program that starts programs itself can keep a fork of itself as its own fork server.

The processes of `--processes`, `--watch` and `bench` are forks too, of a second fork server that
is a child of their supervisor. It makes them children of the supervisor, as a real start does.

With `GW_FORKS=off` in the environment of the tests, every program starts for real.
"""

import atexit
import ctypes
import fcntl
import gc
import importlib
import importlib.machinery
import io
import itertools
import json
import os
import platform
import re
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn, Self

# What commands import at their start or later, also if few tests use the command.
PRELOADED = (
    "uvloop",
    "graphile_worker._cli.main",
    "graphile_worker._cli.doctor_output",
    "graphile_worker._cli.job_output",
    "graphile_worker._cli.top.start",
)

# Variables that the dynamic linker, the C library, the interpreter or an import read once.
READ_AT_START = re.compile(r"^(LD_|GLIBC_|MALLOC_|FAKETIME|LANG|LC_|PYTHON|PSYCOPG_)")

# Arguments of commands that start Python programs.
STARTING_FLAGS = {"-p", "--processes", "--watch", "bench", "demo", "pytest"}

# The name of the process that forks them.
SIBLING_SERVER = "fork-server"

# The system call clone, by the machine, and its flag that gives a child the parent of its caller.
CLONE_NUMBERS = {"x86_64": 56, "aarch64": 220}
CLONE_PARENT = 0x8000

# The number with which the system call prctl sets the name of a process.
PR_SET_NAME = 15

GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Of one request: three streams, what a program inherits besides, and a connection.
MAX_DESCRIPTORS = 32

# A process id or a wait status.
NUMBER = struct.Struct("=i")

Stream = int | IO[Any]


def is_enabled() -> bool:
    return os.environ.get("GW_FORKS") != "off"


class ForkServer:
    """The client of a fork server, which runs as long as this object is open."""

    def __init__(self, environment: Mapping[str, str], preloaded: Sequence[str] = ()) -> None:
        self._read_at_start = _read_at_start(environment)
        self._preloaded = preloaded
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._wait = self._launch(theirs, environment)

    def _launch(self, control: socket.socket, environment: Mapping[str, str]) -> Callable[[], Any]:
        """Start the server; the function that waits for its end."""
        return subprocess.Popen(
            [sys.executable, __file__, str(control.fileno()), *self._preloaded],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[control.fileno()],
        ).wait

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Whether a fork behaves as a program that starts with this environment."""
        return _read_at_start(environment) == self._read_at_start

    def start(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdin: Stream,
        stdout: Stream,
        stderr: Stream,
        start_new_session: bool = False,
        frees_modules: bool = False,
    ) -> "ForkedProcess":
        """Run a Python script with arguments; the streams are those of `subprocess.Popen`."""
        request = {
            "command": list(command),
            "cwd": str(cwd),
            "environment": dict(env),
            "has_own_session": start_new_session,
            "frees_modules": frees_modules,
            "starts_programs": not STARTING_FLAGS.isdisjoint(command),
        }
        with _Streams() as streams:
            descriptors = [streams.open(each) for each in (stdin, stdout, stderr)]
            connection, theirs = socket.socketpair()
            with theirs:
                socket.send_fds(self._control, [b"start"], [*descriptors, theirs.fileno()])
            out, err = streams.readers.get(1), streams.readers.get(2)
        connection.sendall(json.dumps(request).encode())
        connection.shutdown(socket.SHUT_WR)
        return ForkedProcess(connection, out, err)

    def close(self) -> None:
        self._control.close()
        self._wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class OwnForkServer(ForkServer):
    """A fork server that is itself a fork of this process, as it is now.

    Its programs have the modules and the `sys.path` of this process, except modules of the tests.
    This process must have one thread.
    """

    def _launch(self, control: socket.socket, environment: Mapping[str, str]) -> Callable[[], Any]:
        pid = os.fork()
        if pid == 0:
            self._control.close()
            for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
                del sys.modules[name]
            serve_programs(control.detach())
            sys.exit()
        return partial(os.waitpid, pid, 0)


class ForkedProcess:
    """As much of `subprocess.Popen` as tests use."""

    def __init__(
        self, connection: socket.socket, stdout: IO[str] | None, stderr: IO[str] | None
    ) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self._connection = connection
        self._lock = threading.Lock()
        self._code: int | None = None
        self.pid = self._receive()

    def poll(self) -> int | None:
        # While another thread waits for the end, the process runs.
        if self._code is None and self._lock.acquire(blocking=False):
            try:
                self._look(0)
            finally:
                self._lock.release()
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        with self._lock:
            self._look(timeout)
        if self._code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return self._code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> None:
        """Read the exit code if the process ends within that time."""
        if self._code is not None:
            return
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        if poll.poll(None if timeout is None else timeout * 1000):
            self._code = os.waitstatus_to_exitcode(self._receive())
            self._connection.close()

    def _receive(self) -> int:
        received = self._connection.recv(NUMBER.size, socket.MSG_WAITALL)
        if len(received) < NUMBER.size:
            self._connection.close()
            raise RuntimeError("the fork server ended")
        number: int = NUMBER.unpack(received)[0]
        return number


class _Streams:
    """The standard streams of a program, opened as `subprocess.Popen` does."""

    def __init__(self) -> None:
        # The other ends of pipes, by the number of the stream.
        self.readers: dict[int, IO[str]] = {}
        self._descriptors: list[int] = []
        self._opened: list[int] = []

    def open(self, stream: Stream) -> int:
        """Add the next stream; its descriptor in this process."""
        self._descriptors.append(self._descriptor(stream))
        return self._descriptors[-1]

    def _descriptor(self, stream: Stream) -> int:
        if stream == subprocess.STDOUT:
            return self._descriptors[1]
        if stream == subprocess.DEVNULL:
            return self._close_later(os.open(os.devnull, os.O_RDWR))
        if stream == subprocess.PIPE:
            reading, writing = os.pipe()
            reader = open(reading, encoding="utf-8", errors="replace")  # noqa: SIM115
            self.readers[len(self._descriptors)] = reader
            return self._close_later(writing)
        return stream if isinstance(stream, int) else stream.fileno()

    def _close_later(self, descriptor: int) -> int:
        self._opened.append(descriptor)
        return descriptor

    def __enter__(self) -> "_Streams":
        return self

    def __exit__(self, *error: object) -> None:
        """Close the ends that only the program needs."""
        for descriptor in self._opened:
            os.close(descriptor)


# By what they import besides the package.
_running: dict[tuple[str, ...], ForkServer] = {}
_start_lock = threading.Lock()


def fork_server(environment: Mapping[str, str], preloaded: tuple[str, ...] = ()) -> ForkServer:
    """The fork server of this test process, started with this environment at the first call."""
    with _start_lock:
        if preloaded not in _running:
            _running[preloaded] = ForkServer(environment, preloaded)
            atexit.register(_running[preloaded].close)
        return _running[preloaded]


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if READ_AT_START.match(name)}


# The rest runs in the fork server and its forks.


def serve_programs(descriptor: int, preloaded: Sequence[str] = ()) -> None:
    """Fork at each request of the client; returns in a fork, at the end of its program.

    It may also raise what the program raised.
    """
    control = socket.socket(fileno=descriptor)
    for name in (*PRELOADED, *preloaded):
        importlib.import_module(name)
    # A collection in a fork would write to, and so copy, every page with an object of the server.
    gc.collect()
    gc.freeze()
    # Ctrl+C reaches the whole process group; the test process decides when the server ends.
    interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)
    descriptors = serve(control)
    # Only a fork gets here.
    signal.signal(signal.SIGINT, interrupted)
    control.close()
    run(*become(descriptors))


def serve(control: socket.socket) -> list[int]:
    """Fork at each request; returns in the fork, with the descriptors that came with it."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    # Process ids and connections by pidfd.
    forks: dict[int, tuple[int, int]] = {}
    while True:
        for ready, _ in poll.poll():
            if ready != control.fileno():
                poll.unregister(ready)
                report(ready, *forks.pop(ready))
                continue
            message, descriptors, _, _ = socket.recv_fds(control, 16, 4)
            if not message:
                leave([pid for pid, _ in forks.values()])
            pid = os.fork()
            if pid == 0:
                return descriptors
            *streams, connection = descriptors
            for each in streams:
                os.close(each)
            write(connection, pid)
            pidfd = os.pidfd_open(pid)
            forks[pidfd] = (pid, connection)
            poll.register(pidfd, select.POLLIN)


def report(pidfd: int, pid: int, connection: int) -> None:
    """Send the wait status of a fork that ended."""
    _, status = os.waitpid(pid, 0)
    write(connection, status)
    os.close(connection)
    os.close(pidfd)


def write(connection: int, number: int) -> None:
    # The client closes the connection of a program that it does not wait for.
    with suppress(BrokenPipeError):
        os.write(connection, NUMBER.pack(number))


def leave(running: list[int]) -> NoReturn:
    """End the server, and the programs that the test process left."""
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    os._exit(0)


def become(descriptors: list[int]) -> tuple[str, bool]:
    """Take on everything that a program gets at its start.

    Returns the path of its script, and whether it frees its modules at its end.
    """
    *given, connection = descriptors
    with open(connection, "rb", closefd=False) as file:
        request = json.load(file)
    if request["has_own_session"]:
        os.setsid()
    # The numbers that descriptors have in the program: streams come first.
    numbers = [0, 1, 2, *request.get("inherited", [])]
    if request["starts_programs"] and platform.machine() in CLONE_NUMBERS:
        siblings, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            siblings.close()
            close(descriptors)
            return become(serve_siblings(theirs))
        given.append(siblings.detach())
        numbers.append(given[-1])
    take_descriptors(given, numbers)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        reopen(name, mode)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    command: list[str] = request["command"]
    sys.argv[:] = command
    sys.orig_argv[:] = [sys.executable, *command]
    sys.path[0] = os.path.dirname(os.path.realpath(command[0]))
    if len(numbers) > len(descriptors) - 1:
        patch_subprocess(numbers[-1])
    return command[0], request["frees_modules"]


def take_descriptors(given: list[int], numbers: list[int]) -> None:
    """Give descriptors their numbers, and close all others: those of other programs."""
    # One of them may have the number of another.
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD, max(numbers) + 1) for each in given]
    for descriptor, number in zip(moved, numbers, strict=True):
        os.dup2(descriptor, number)
    for below, number in itertools.pairwise(sorted(numbers)):
        os.closerange(below + 1, number)
    os.closerange(max(numbers) + 1, os.sysconf("SC_OPEN_MAX"))


def close(descriptors: Sequence[int]) -> None:
    for each in descriptors:
        os.close(each)


def serve_siblings(control: socket.socket) -> list[int]:
    """Start a program beside this process at each request; returns in it, as `serve` does."""
    name = Path("/proc/self/comm").read_bytes().strip()
    ctypes.CDLL(None).prctl(PR_SET_NAME, SIBLING_SERVER.encode())
    # They may be meant for the process group of its programs.
    handlers = {each: signal.signal(each, signal.SIG_IGN) for each in GROUP_SIGNALS}
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 16, MAX_DESCRIPTORS)
        if not message:
            os._exit(0)
        pid = fork_sibling()
        if pid == 0:
            ctypes.CDLL(None).prctl(PR_SET_NAME, name)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            control.close()
            return descriptors
        write(descriptors[-1], pid)
        close(descriptors)


def fork_sibling() -> int:
    """Fork a process whose parent is the parent of this process."""
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    flags = CLONE_PARENT | signal.SIGCHLD
    pid = ctypes.PyDLL(None).syscall(CLONE_NUMBERS[platform.machine()], flags, 0, 0, 0, 0)
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    assert isinstance(pid, int)
    return pid


def patch_subprocess(control: int) -> None:
    """Start Python programs of `subprocess` through the fork server beside this process."""
    server = socket.socket(fileno=control)
    started_with = _read_at_start(os.environ)
    start_for_real = subprocess._fork_exec  # type: ignore[attr-defined]

    def start(*details: Any) -> int:
        command, _, _, kept, folder, variables, stdin, _, _, stdout, _, stderr = details[:12]
        _, error_pipe, _, has_own_session, *rare = details[12:22]
        environment = _parse_environment(variables)
        is_plain = rare == [-1, None, None, None, -1, None]
        if (
            not (is_plain and is_python_program(command))
            or _read_at_start(environment) != started_with
        ):
            return int(start_for_real(*details))
        inherited = [number for number in kept if number != error_pipe]
        streams = [n if n != -1 else own for own, n in enumerate((stdin, stdout, stderr))]
        request = {
            "command": command[1:],
            "cwd": os.fsdecode(folder or os.getcwd()),
            "environment": environment,
            "inherited": inherited,
            "has_own_session": bool(has_own_session),
            "frees_modules": False,
            "starts_programs": False,
        }
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                given = [*streams, *inherited, theirs.fileno()]
                socket.send_fds(server, [b"start"], given)
            ours.sendall(json.dumps(request).encode())
            ours.shutdown(socket.SHUT_WR)
            number: int = NUMBER.unpack(ours.recv(NUMBER.size, socket.MSG_WAITALL))[0]
            return number

    subprocess._fork_exec = start  # type: ignore[attr-defined]


def is_python_program(command: Sequence[str]) -> bool:
    """Whether a command is this interpreter with a script, or with the package."""
    if command[:1] != [sys.executable] or len(command) < 2:
        return False
    if command[1] == "-m":
        return command[2] in ("graphile_worker", "pytest")
    return command[1].endswith((".py", "/graphile-worker"))


def _parse_environment(variables: Sequence[bytes] | None) -> dict[str, str]:
    if variables is None:
        return dict(os.environ)
    pairs = (os.fsdecode(each).partition("=") for each in variables)
    return {name: value for name, _, value in pairs}


def reopen(name: str, mode: str) -> None:
    """Make a standard stream for what its descriptor now names, as an interpreter does."""
    old: io.TextIOWrapper = getattr(sys, name)
    stream = open(  # noqa: SIM115
        old.fileno(),
        mode,
        buffering=1 if name == "stderr" else -1,
        encoding=old.encoding,
        errors=old.errors,
        closefd=False,
    )
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def run(path: str, frees_modules: bool) -> None:
    """Run a script as `__main__`; returns or raises only for the normal end of an interpreter."""
    try:
        execute(path)
    except SystemExit as error:
        if not isinstance(error.code, int | None):
            raise
        code = error.code or 0
    else:
        code = 0
    if not frees_modules:
        end(code)
    sys.exit(code)


def execute(path: str) -> None:
    if path == "-m":
        sys.argv.pop(0)
        sys.path[0] = os.getcwd()
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    path = os.path.abspath(path)
    module = types.ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    module.__dict__.update(__file__=path, __loader__=loader, __builtins__=__builtins__)
    sys.modules["__main__"] = module
    exec(compile(Path(path).read_bytes(), path, "exec"), module.__dict__)


def end(code: int) -> None:
    """Do what an interpreter does at its end, except that most objects stay.

    Returns if a stream cannot be written.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    # Prints warnings about coroutines and tasks that nothing waits for.
    gc.collect()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF)


if __name__ == "__main__":
    serve_programs(int(sys.argv[1]), sys.argv[2:])
