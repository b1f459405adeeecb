"""The command on a pseudo-terminal, so that tests can read and answer its questions."""

import os
import pty
import select
import time
from typing import Any

from tests.support.processes import INSTALLED, TIMEOUT_SECONDS, Program, Programs


class Terminal:
    """A program with a terminal as standard input and standard error."""

    def __init__(self, programs: Programs, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        self.seen = ""
        streams: dict[str, Any] = {"stdin": theirs, "stderr": theirs}
        self.program: Program = programs.start(
            [INSTALLED, *arguments], {"TERM": "xterm", "COLUMNS": "80"}, **streams
        )
        os.close(theirs)

    def wait_for_text(self, text: str) -> None:
        """Wait until a text is on the terminal."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while text not in self.seen:
            assert self._more(deadline - time.monotonic()), f"{text!r} is not in {self.seen!r}"

    def watch(self, seconds: float) -> None:
        """Read for a while, so that the program does not block on its output."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not self._more(left):
                time.sleep(min(left, 0.01))

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def end(self) -> int:
        code = self.program.end()
        while self._more(0):
            pass
        os.close(self._ours)
        return code

    def _more(self, within: float) -> bool:
        if not select.select([self._ours], [], [], max(0, within))[0]:
            return False
        try:
            self.seen += os.read(self._ours, 65536).decode()
        except OSError:
            # The other end is closed.
            return False
        return True
