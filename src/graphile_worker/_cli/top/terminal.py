"""Terminal: a screen of its own that is given back as it was, whatever ends us."""

import os
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from graphile_worker._cli.top.text import Line, render_ansi

# The alternate screen without a cursor, where a line that is too long would not go on in the next.
ENTER_SCREEN = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
LEAVE_SCREEN = "\x1b[?7h\x1b[?25h\x1b[?1049l"

# All at once, where a terminal can do that; the others do not mind.
BEGIN_UPDATE, END_UPDATE = "\x1b[?2026h", "\x1b[?2026l"

# Of its flags: whole lines, what is typed shown, Ctrl-S and Ctrl-Q.
LINE_MODE_FLAGS = termios.ICANON | termios.ECHO
FLOW_CONTROL_FLAG = termios.IXON


class Terminal:
    """Draws lines, and only those that changed."""

    def __init__(self, *, is_color_enabled: bool) -> None:
        self._is_color_enabled = is_color_enabled
        self._stdout_fd = sys.stdout.fileno()
        self._stdin_fd = sys.stdin.fileno()
        self._encoding = sys.stdout.encoding or "ascii"
        self._saved_attributes: list[object] | None = None
        self._drawn_lines: list[str] = []
        self._size = (0, 0)

    @contextmanager
    def alternate_screen(self) -> Iterator[None]:
        """Meanwhile the screen is ours."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        if os.isatty(self._stdin_fd):
            self._saved_attributes = list(termios.tcgetattr(self._stdin_fd))
            self._set_attributes(_with_cbreak_mode(self._saved_attributes))
        self._write(ENTER_SCREEN)
        self.invalidate()

    def leave(self) -> None:
        # It may be gone: then nobody needs it.
        with suppress(OSError, termios.error):
            self._write(LEAVE_SCREEN)
        if self._saved_attributes is not None:
            with suppress(OSError, termios.error):
                self._set_attributes(self._saved_attributes)
            self._saved_attributes = None

    def invalidate(self) -> None:
        """Draw everything the next time."""
        self._size = (0, 0)

    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        try:
            size = os.get_terminal_size(self._stdout_fd)
        except OSError:
            return 80, 24
        return size.columns or 80, size.lines or 24

    def draw(self, lines: Sequence[Line], size: tuple[int, int]) -> None:
        painted = [render_ansi(line, is_color_enabled=self._is_color_enabled) for line in lines]
        if size == self._size:
            clear, old = "", self._drawn_lines
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
            self._write("".join([BEGIN_UPDATE, clear, *changes, END_UPDATE]))
        self._drawn_lines, self._size = painted, size

    def _set_attributes(self, attributes: list[object]) -> None:
        termios.tcsetattr(self._stdin_fd, termios.TCSADRAIN, attributes)  # type: ignore[arg-type]  # as tcgetattr gave them

    def _write(self, text: str) -> None:
        left = text.encode(self._encoding, "replace")
        while left:
            left = left[os.write(self._stdout_fd, left) :]


def _with_cbreak_mode(attributes: list[object]) -> list[object]:
    """The same, but each key is heard at once, and only by us."""
    changed = list(attributes)
    read, _, _, local = (int(str(each)) for each in changed[:4])
    changed[0] = read & ~FLOW_CONTROL_FLAG
    changed[3] = local & ~LINE_MODE_FLAGS
    return changed
