"""The terminal of the live view: an alternate screen, and the previous state when it ends."""

import os
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from graphile_worker._cli.top.text import StyledLine, render_ansi

# The alternate screen, without a cursor and without wrapping of long lines.
ENTER_SCREEN = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
LEAVE_SCREEN = "\x1b[?7h\x1b[?25h\x1b[?1049l"

# Terminals that support synchronized updates draw all at once; the others ignore these codes.
BEGIN_UPDATE, END_UPDATE = "\x1b[?2026h", "\x1b[?2026l"

DEFAULT_SIZE = os.terminal_size((80, 24))


class Terminal:
    """Draws lines, and sends only those that changed."""

    def __init__(self, *, is_color_enabled: bool) -> None:
        self._is_color_enabled = is_color_enabled
        self._stdout_fd = sys.stdout.fileno()
        self._stdin_fd = sys.stdin.fileno()
        self._encoding = sys.stdout.encoding or "ascii"
        self._saved_attributes: list[object] | None = None
        self._drawn_lines: list[str] = []
        self._drawn_size = DEFAULT_SIZE

    @contextmanager
    def alternate_screen(self) -> Iterator[None]:
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        if os.isatty(self._stdin_fd):
            attributes = termios.tcgetattr(self._stdin_fd)
            self._saved_attributes = list(attributes)
            # Each key arrives at once and is not echoed, and Ctrl-S does not stop the output.
            attributes[0] &= ~termios.IXON
            attributes[3] &= ~(termios.ICANON | termios.ECHO)
            termios.tcsetattr(self._stdin_fd, termios.TCSADRAIN, attributes)
        self._write(ENTER_SCREEN)
        self._drawn_lines = []

    def leave(self) -> None:
        # The terminal may be closed already.
        with suppress(OSError, termios.error):
            self._write(LEAVE_SCREEN)
        if self._saved_attributes is not None:
            with suppress(OSError, termios.error):
                termios.tcsetattr(self._stdin_fd, termios.TCSADRAIN, self._saved_attributes)  # type: ignore[arg-type]  # as tcgetattr returned them
            self._saved_attributes = None

    def get_size(self) -> os.terminal_size:
        try:
            size = os.get_terminal_size(self._stdout_fd)
        except OSError:
            return DEFAULT_SIZE
        return size if all(size) else DEFAULT_SIZE

    def draw(self, lines: Sequence[StyledLine], size: os.terminal_size) -> None:
        texts = [render_ansi(line, is_color_enabled=self._is_color_enabled) for line in lines]
        changes = []
        if size != self._drawn_size or not self._drawn_lines:
            changes, self._drawn_lines = ["\x1b[2J"], []
        for row, text in enumerate(texts):
            if row >= len(self._drawn_lines) or self._drawn_lines[row] != text:
                # Erase first: after a line that fills the row, erasing removes its last character.
                changes.append(f"\x1b[{row + 1};1H\x1b[K{text}")
        changes += [f"\x1b[{row + 1};1H\x1b[K" for row in range(len(texts), len(self._drawn_lines))]
        if changes:
            self._write("".join([BEGIN_UPDATE, *changes, END_UPDATE]))
        self._drawn_lines, self._drawn_size = texts, size

    def _write(self, text: str) -> None:
        left = text.encode(self._encoding, "replace")
        while left:
            left = left[os.write(self._stdout_fd, left) :]
