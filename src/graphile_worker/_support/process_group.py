"""ProcessGroup: a program that was started for jobs, and what it started itself.

All of them are one group, and end together: nothing goes on that nobody waits for.

Without the subprocesses of event loops: uvloop hands what it cannot run to a shell, and leaves
files of the worker open; some releases of asyncio wait for a program until all who hold one of its
pipes have ended, and these are ended only after the program.
"""

import asyncio
import os
import signal
import subprocess
import threading
from contextlib import suppress
from typing import Any


class ProcessGroup:
    """A program in a session of its own, and its descendants unless these made another one.

    When the program has ended, so have they.
    """

    def __init__(self, *command: str, **options: Any) -> None:
        """Start it; options are those of Popen."""
        self.returncode: int | None = None
        self._process = subprocess.Popen(command, start_new_session=True, **options)
        self._exited = asyncio.Event()
        # One for each, as they may take hours; the worker does not wait for it when it ends.
        here = (asyncio.get_running_loop(),)
        waiting = threading.Thread(target=self._wait_in_thread, args=here, daemon=True)
        try:
            waiting.start()
        except RuntimeError:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> str:
        """Its exit code, or the name of the signal that ended it."""
        code = self.returncode
        assert code is not None
        return f"exit code {code}" if code >= 0 else f"signal {_signal_name(-code)}"

    @property
    def has_exited(self) -> bool:
        """Has the program ended, even if `wait` has not heard of it yet?"""
        if self._process.returncode is not None:
            return True
        if not hasattr(os, "waitid"):
            return False
        try:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:
            # Just now.
            return True
        return found is not None

    async def wait(self) -> int:
        """The exit code of the program, once all of the group have ended."""
        await self._exited.wait()
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        """End all of the group at once; fine when it has ended already."""
        self._send_signal(signal.SIGKILL)

    async def terminate(self, within: float) -> None:
        """Ask the group to end, and kill what is left of it after so many seconds."""
        try:
            self._send_signal(signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(within):
                    await self.wait()
        finally:
            self.kill()

    def _wait_in_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        if hasattr(os, "waitid"):
            # Not yet forgotten by the system, so that its number is nobody else's.
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self._send_signal(signal.SIGKILL)
        self._process.wait()
        # Nobody is there to hear of it once the loop is closed.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._mark_exited)

    def _mark_exited(self) -> None:
        self.returncode = self._process.returncode
        self._exited.set()

    def _send_signal(self, number: signal.Signals) -> None:
        # After its end the number may be another's.
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
