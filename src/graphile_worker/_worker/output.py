"""Output: what a program says, line by line; the last lines are kept for when it fails."""

from collections import deque
from collections.abc import AsyncIterator, Callable

from graphile_worker._support.logs import make_printable

# Bytes of one line, at most.
MAX_LINE_BYTES = 2_000
MAX_KEPT_LINES = 20


class OutputReader:
    """Reads to the end, always, so that who writes never waits for long."""

    def __init__(
        self, chunks: AsyncIterator[bytes], on_line: Callable[[str], object] | None = None
    ) -> None:
        self.on_line = on_line
        """Told of each line; may be another one from line to line."""
        self._chunks = chunks
        self._last_lines: deque[str] = deque(maxlen=MAX_KEPT_LINES)

    @property
    def last_output(self) -> str:
        return "\n".join(self._last_lines)

    def clear(self) -> None:
        """What was said until now is about something else."""
        self._last_lines.clear()

    async def read_all(self) -> None:
        """Until the program, and whoever shares its output, has ended."""
        rest = b""
        async for chunk in self._chunks:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._handle_line(line)
            # Of a line without an end no more is kept than is shown.
            rest = rest[: MAX_LINE_BYTES + 1]
        if rest:
            self._handle_line(rest)

    def _handle_line(self, line: bytes) -> None:
        text = format_line(line)
        self._last_lines.append(text)
        if self.on_line is not None:
            self.on_line(text)


def format_line(line: bytes) -> str:
    """A line as it may stand in a log: control characters escaped, not too long."""
    text = make_printable(line[:MAX_LINE_BYTES].decode(errors="replace").rstrip("\r"))
    return f"{text}…" if len(line) > MAX_LINE_BYTES else text
