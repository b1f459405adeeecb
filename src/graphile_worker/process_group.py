"""ProcessGroup: a program that was started for jobs, and what it started itself.

All of them are one group, and end together: nothing goes on that nobody waits for.
"""

import asyncio
import os
import signal
from contextlib import suppress
from typing import Any


class ProcessGroup:
    """A running program and its descendants, unless these made a session of their own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._is_over = False

    @classmethod
    async def started(cls, *command: str, **options: Any) -> "ProcessGroup":
        """A program in a new session; options are those of asyncio's subprocesses."""
        process = await asyncio.create_subprocess_exec(*command, start_new_session=True, **options)
        return cls(process)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def how_it_ended(self) -> str:
        """Its exit code, or the name of the signal that ended it."""
        code = self.process.returncode
        assert code is not None
        return f"exit code {code}" if code >= 0 else f"signal {_signal_name(-code)}"

    async def wait(self) -> int:
        """The exit code of the program; its descendants may live on."""
        return await self.process.wait()

    def kill(self) -> None:
        """End all of the group at once; fine when it has ended already."""
        if self._is_over:
            # Its number may be another's by now.
            return
        self._is_over = self.process.returncode is not None
        self._send(signal.SIGKILL)

    async def end(self, within: float) -> None:
        """Ask the group to end, and kill what is left of it after so many seconds."""
        try:
            if self.process.returncode is None:
                self._send(signal.SIGTERM)
                with suppress(TimeoutError):
                    async with asyncio.timeout(within):
                        await self.process.wait()
        finally:
            self.kill()

    def _send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
