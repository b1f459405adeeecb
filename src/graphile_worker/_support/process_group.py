"""ProcessGroup: a program that runs for jobs, and its child processes.

All of them end together, so that no process is left behind.

Without the subprocesses of event loops: uvloop passes files that it cannot execute to a shell, and
leaves files of the worker open. Some releases of asyncio wait until all processes with one of the
program's pipes have ended, and here these end only after the program.
"""

import asyncio
import os
import signal
import subprocess
import threading
from contextlib import suppress
from typing import Any


class ProcessGroup:
    """A program in a separate session, and its descendants unless they created another one.

    They end with the program.
    """

    def __init__(self, *command: str, **options: Any) -> None:
        """Start the program with the options of Popen."""
        self.returncode: int | None = None
        self._process = subprocess.Popen(command, start_new_session=True, **options)
        self._exited = asyncio.Event()
        # One thread per program, as it may run for hours. A worker that exits does not wait for it.
        loop = asyncio.get_running_loop()
        thread = threading.Thread(target=self._wait_in_thread, args=(loop,), daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> str:
        """Return the exit code, or the name of the signal that ended the program."""
        code = self.returncode
        assert code is not None
        return f"exit code {code}" if code >= 0 else f"signal {_signal_name(-code)}"

    @property
    def has_exited(self) -> bool:
        """Return whether the program has ended, even if `wait` has not returned yet."""
        if self._process.returncode is not None:
            return True
        if not hasattr(os, "waitid"):
            return False
        try:
            result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:
            # It ended in this moment.
            return True
        return result is not None

    async def wait(self) -> int:
        """Wait until the whole group has ended, and return the exit code of the program."""
        await self._exited.wait()
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        """Kill the group if it has not ended."""
        self._send_signal(signal.SIGKILL)

    async def terminate(self, within: float) -> None:
        """Send SIGTERM to the group, and SIGKILL after `within` seconds."""
        try:
            self._send_signal(signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(within):
                    await self.wait()
        finally:
            self.kill()

    def _wait_in_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        if hasattr(os, "waitid"):
            # WNOWAIT keeps the process id reserved until the group is killed.
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self._send_signal(signal.SIGKILL)
        self._process.wait()
        # The loop may be closed already.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._mark_exited)

    def _mark_exited(self) -> None:
        self.returncode = self._process.returncode
        self._exited.set()

    def _send_signal(self, number: signal.Signals) -> None:
        # After its end another process may have the id.
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
