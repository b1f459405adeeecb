"""Output: what a program says, line by line; the last lines are kept for when it fails."""

import asyncio
from collections import deque
from collections.abc import Callable

# Bytes that are read at once, and of one line at most.
CHUNK = 65_536
LONGEST_LINE = 2_000
KEPT_LINES = 20


class Output:
    """Reads a stream to its end, always, so that who writes never waits for long."""

    def __init__(
        self, stream: asyncio.StreamReader, hear: Callable[[str], object] | None = None
    ) -> None:
        self.hear = hear
        """Told of each line; may be another one from line to line."""
        self._stream = stream
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
        while chunk := await self._stream.read(CHUNK):
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
    text = line[:LONGEST_LINE].decode(errors="replace").rstrip("\r")
    if not text.isprintable():
        text = "".join(
            each if each.isprintable() or each == "\t" else _escaped(each) for each in text
        )
    return f"{text}…" if len(line) > LONGEST_LINE else text


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
