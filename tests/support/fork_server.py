"""A process that has imported the package and forks a copy of itself for each program of a test.

Starting `graphile-worker` costs about 0.7 s of CPU time, nearly all of it for imports. A fork of a
process that has done those imports costs about 25 ms. The test process is the client. It starts
one fork server at the first use. The server ends when the test process does, even if it is killed.

For each program the client sends three standard streams and a connection. The fork reads from the
connection what to run, and the fork server writes to it the process id and, at the end, the status.

A program differs from a real one in this: its parent is the fork server, all programs share one
hash seed, and `/proc/PID/cmdline` and `/proc/PID/environ` are those of the fork server. If it ends
without an error, it does not free the objects of its modules: that would copy all that it shares
with the fork server.

A program that starts programs itself can keep a fork of itself as its own fork server.

With `GW_FORKS=off` in the environment of the tests, every program starts for real.
"""

import atexit
import gc
import importlib
import importlib.machinery
import io
import json
import os
import re
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

# A process id or a wait status.
NUMBER = struct.Struct("=i")

Stream = int | IO[Any]


def is_enabled() -> bool:
    return os.environ.get("GW_FORKS") != "off"


class ForkServer:
    """The client of a fork server, which runs as long as this object is open."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._read_at_start = _read_at_start(environment)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._wait = self._launch(theirs, environment)

    def _launch(self, control: socket.socket, environment: Mapping[str, str]) -> Callable[[], Any]:
        """Start the server; the function that waits for its end."""
        return subprocess.Popen(
            [sys.executable, __file__, str(control.fileno())],
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
    ) -> "ForkedProcess":
        """Run a Python script with arguments; the streams are those of `subprocess.Popen`."""
        request = {"command": list(command), "cwd": str(cwd), "environment": dict(env)}
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


_running: list[ForkServer] = []
_start_lock = threading.Lock()


def fork_server(environment: Mapping[str, str]) -> ForkServer:
    """The fork server of this test process, started with this environment at the first call."""
    with _start_lock:
        if not _running:
            _running.append(ForkServer(environment))
            atexit.register(_running[0].close)
        return _running[0]


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if READ_AT_START.match(name)}


# The rest runs in the fork server and its forks.


def serve_programs(descriptor: int) -> None:
    """Fork at each request of the client; returns in a fork, at the end of its program.

    It may also raise what the program raised.
    """
    control = socket.socket(fileno=descriptor)
    for name in PRELOADED:
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
    run(become(descriptors))


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


def become(descriptors: list[int]) -> str:
    """Take on everything that a program gets at its start; the path of its script."""
    *streams, connection = descriptors
    with open(connection, "rb", closefd=False) as file:
        request = json.load(file)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    # Those of this program under their first numbers, and those of other programs.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
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
    return command[0]


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


def run(path: str) -> None:
    """Run a script as `__main__`; returns or raises only for the normal end of an interpreter."""
    module = types.ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    module.__dict__.update(__file__=path, __loader__=loader, __builtins__=__builtins__)
    sys.modules["__main__"] = module
    try:
        exec(compile(Path(path).read_bytes(), path, "exec"), module.__dict__)
    except SystemExit as error:
        if not isinstance(error.code, int | None):
            raise
        code = error.code or 0
    else:
        code = 0
    end(code)
    sys.exit(code)


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
    serve_programs(int(sys.argv[1]))
