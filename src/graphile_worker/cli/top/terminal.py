"""Terminal: a screen of its own that is given back as it was, whatever ends us."""

import os
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from graphile_worker.cli.top.text import Line, paint

# The alternate screen without a cursor, where a line that is too long would not go on in the next.
ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"

# All at once, where a terminal can do that; the others do not mind.
BEGIN, END = "\x1b[?2026h", "\x1b[?2026l"

# Of its flags: whole lines, what is typed shown, Ctrl-S and Ctrl-Q.
LINES = termios.ICANON | termios.ECHO
FLOW = termios.IXON


class Terminal:
    """Draws lines, and only those that changed."""

    def __init__(self, *, coloured: bool) -> None:
        self._coloured = coloured
        self._out = sys.stdout.fileno()
        self._in = sys.stdin.fileno()
        self._encoding = sys.stdout.encoding or "ascii"
        self._before: list[object] | None = None
        self._drawn: list[str] = []
        self._size = (0, 0)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Meanwhile the screen is ours."""
        self.take()
        try:
            yield
        finally:
            self.give_back()

    def take(self) -> None:
        if os.isatty(self._in):
            self._before = list(termios.tcgetattr(self._in))
            self._set(_by_keys(self._before))
        self._write(ENTER)
        self.forget()

    def give_back(self) -> None:
        # It may be gone: then nobody needs it.
        with suppress(OSError, termios.error):
            self._write(LEAVE)
        if self._before is not None:
            with suppress(OSError, termios.error):
                self._set(self._before)
            self._before = None

    def forget(self) -> None:
        """Draw everything the next time."""
        self._size = (0, 0)

    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        try:
            size = os.get_terminal_size(self._out)
        except OSError:
            return 80, 24
        return size.columns or 80, size.lines or 24

    def draw(self, lines: Sequence[Line], size: tuple[int, int]) -> None:
        painted = [paint(line, coloured=self._coloured) for line in lines]
        if size == self._size:
            clear, old = "", self._drawn
        else:
            clear, old = "\x1b[2J", []
        changes = [
            # Emptied before, not after: at the end of a full line, that would take its last letter.
            f"\x1b[{row};1H\x1b[K{text}"
            for row, text in enumerate(painted, start=1)
            if row > len(old) or old[row - 1] != text
        ]
        changes += [f"\x1b[{row};1H\x1b[K" for row in range(len(painted) + 1, len(old) + 1)]
        if clear or changes:
            self._write("".join([BEGIN, clear, *changes, END]))
        self._drawn, self._size = painted, size

    def _set(self, attributes: list[object]) -> None:
        termios.tcsetattr(self._in, termios.TCSADRAIN, attributes)  # type: ignore[arg-type]  # as tcgetattr gave them

    def _write(self, text: str) -> None:
        left = text.encode(self._encoding, "replace")
        while left:
            left = left[os.write(self._out, left) :]


def _by_keys(attributes: list[object]) -> list[object]:
    """The same, but each key is heard at once, and only by us."""
    changed = list(attributes)
    read, _, _, local = (int(str(each)) for each in changed[:4])
    changed[0] = read & ~FLOW
    changed[3] = local & ~LINES
    return changed
