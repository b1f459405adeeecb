"""Output: what a program says, line by line; the last lines are kept for when it fails."""

from collections import deque
from collections.abc import AsyncIterator, Callable

from graphile_worker.logs import printable

# Bytes of one line, at most.
LONGEST_LINE = 2_000
KEPT_LINES = 20


class Output:
    """Reads to the end, always, so that who writes never waits for long."""

    def __init__(
        self, chunks: AsyncIterator[bytes], hear: Callable[[str], object] | None = None
    ) -> None:
        self.hear = hear
        """Told of each line; may be another one from line to line."""
        self._chunks = chunks
        self._last: deque[str] = deque(maxlen=KEPT_LINES)

    @property
    def last_words(self) -> str:
        return "\n".join(self._last)

    def forget(self) -> None:
        """What was said until now is about something else."""
        self._last.clear()

    async def listen(self) -> None:
        """Until the program, and whoever shares its output, has ended."""
        rest = b""
        async for chunk in self._chunks:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._heard(line)
            # Of a line without an end no more is kept than is shown.
            rest = rest[: LONGEST_LINE + 1]
        if rest:
            self._heard(rest)

    def _heard(self, line: bytes) -> None:
        text = shown(line)
        self._last.append(text)
        if self.hear is not None:
            self.hear(text)


def shown(line: bytes) -> str:
    """A line as it may stand in a log: control characters escaped, not too long."""
    text = printable(line[:LONGEST_LINE].decode(errors="replace").rstrip("\r"))
    return f"{text}…" if len(line) > LONGEST_LINE else text
