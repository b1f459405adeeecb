"""OutputReader: reads the output of a program by line, and keeps the last lines for errors."""

from collections import deque
from collections.abc import AsyncIterator, Callable

from graphile_worker._support.error_format import make_printable

MAX_LINE_BYTES = 2_000
MAX_KEPT_LINES = 20


class OutputReader:
    """Reads output until its end, so that the program never waits for a full pipe."""

    def __init__(
        self, chunks: AsyncIterator[bytes], on_line: Callable[[str], object] | None = None
    ) -> None:
        self.on_line = on_line
        """Called with each line. You may replace it at any time."""
        self._chunks = chunks
        self._last_lines: deque[str] = deque(maxlen=MAX_KEPT_LINES)

    @property
    def last_output(self) -> str:
        return "\n".join(self._last_lines)

    def clear(self) -> None:
        """Forget the last lines, before another job runs."""
        self._last_lines.clear()

    async def read_all(self) -> None:
        """Read until the program, and its children with the same output, have ended."""
        rest = b""
        async for chunk in self._chunks:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._handle_line(line)
            # Of an endless line, only the part for the log is kept.
            rest = rest[: MAX_LINE_BYTES + 1]
        if rest:
            self._handle_line(rest)

    def _handle_line(self, line: bytes) -> None:
        text = format_line(line)
        self._last_lines.append(text)
        if self.on_line is not None:
            self.on_line(text)


def format_line(line: bytes) -> str:
    """Format a line for a log: escape control characters, and cut off a long line."""
    text = make_printable(line[:MAX_LINE_BYTES].decode(errors="replace").rstrip("\r"))
    return f"{text}…" if len(line) > MAX_LINE_BYTES else text
