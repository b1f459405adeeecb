"""What passes between a PostgreSQL client and its server, followed message by message.

Nothing is changed or held here: bytes come in as the network cuts them, and what they mean is kept.
"""

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

# The first message of a client has no type byte, and one of these codes instead of a version.
SSL_REQUEST = 80877103
GSS_REQUEST = 80877104
CANCEL_REQUEST = 80877102

QUERY, PARSE, BIND, CALL, SYNC = b"QPBFS"
READY, KEY, ERROR = b"ZKE"

# Of a longer message only the beginning is looked at.
ENOUGH = 65536

_FRAME = struct.Struct("!BI")
_FIRST = struct.Struct("!II")
_NUMBER = struct.Struct("!I")


@dataclass(slots=True)
class Talk:
    """What is known of one connection."""

    application_name: str = ""
    user: str = ""
    database: str = ""
    backend: int = 0
    """The process id of the server, once it is known."""
    cancels: int = 0
    """The server's process that this connection only asks to cancel."""
    is_opaque: bool = False
    """Encrypted from here on: nothing more is known."""
    is_in_transaction: bool = False
    asked: bytes = b""
    """The statements of the newest request; a prepared one by its text."""


class Answer(NamedTuple):
    """The server has completed its answer to a request."""

    asked: bytes
    """The statements since the transaction began, of which this one may be the commit."""
    is_startup: bool
    is_settled: bool
    """Outside of a transaction, and without an error: what was asked is committed."""


class Conversation:
    """Follows both ways of one connection."""

    def __init__(self) -> None:
        self.talk = Talk()
        self._requests = _Messages({QUERY, PARSE, BIND, CALL, SYNC}, self._client_said)
        self._replies = _Messages({READY, KEY, ERROR}, self._server_said)
        self._is_started = False
        self._first = b""
        self._yes_or_no = 0
        self._texts: list[bytes] = []
        self._prepared: dict[bytes, bytes] = {}
        self._waiting: deque[bytes | None] = deque()
        self._transaction: list[bytes] = []
        self._has_failed = False
        self._answers: list[Answer] = []

    @property
    def is_waiting(self) -> bool:
        """Something was asked that is not answered yet; logging in counts."""
        return bool(self._waiting)

    @property
    def is_started(self) -> bool:
        """The client has sent its startup message."""
        return self._is_started

    def request(self, data: bytes) -> bool:
        """The client sent this; whether a request ended with it."""
        if self.talk.is_opaque:
            return False
        if not self._is_started:
            data = self._begin(data)
        before = len(self._waiting)
        self._requests.feed(data)
        return len(self._waiting) > before

    def reply(self, data: bytes) -> list[Answer]:
        """The server sent this; the answers that ended with it."""
        if self.talk.is_opaque:
            return []
        if self._yes_or_no:
            self._yes_or_no -= 1
            self.talk.is_opaque = data[:1] in (b"S", b"G")
            return self.reply(data[1:])
        self._replies.feed(data)
        answers, self._answers = self._answers, []
        return answers

    def _begin(self, data: bytes) -> bytes:
        """What comes after the messages with which a connection begins."""
        self._first += data
        while len(self._first) >= _FIRST.size:
            length, code = _FIRST.unpack_from(self._first)
            if len(self._first) < length:
                return b""
            body, self._first = self._first[_FIRST.size : length], self._first[length:]
            if code in (SSL_REQUEST, GSS_REQUEST):
                self._yes_or_no += 1
                continue
            self._is_started = True
            if code == CANCEL_REQUEST:
                (self.talk.cancels,) = _NUMBER.unpack_from(body)
            else:
                self._introduce(body)
            rest, self._first = self._first, b""
            return rest
        return b""

    def _introduce(self, body: bytes) -> None:
        words = [word.decode(errors="replace") for word in body.split(b"\0")]
        said = dict(zip(words[::2], words[1::2], strict=False))
        self.talk.application_name = said.get("application_name", "")
        self.talk.user = said.get("user", "")
        self.talk.database = said.get("database", "")
        self._waiting.append(None)

    def _client_said(self, kind: int, body: bytes) -> None:
        if kind in (QUERY, CALL):
            self._ask(body.rstrip(b"\0"))
        elif kind == PARSE:
            name, text = body.split(b"\0", 2)[:2]
            self._prepared[name] = text
            # Preparing is asking, too: a fault may be about this statement.
            self._texts.append(text)
        elif kind == BIND:
            name = body.split(b"\0", 2)[1]
            self._texts.append(self._prepared.get(name, b""))
        elif kind == SYNC:
            self._ask(*self._texts)
            self._texts.clear()

    def _ask(self, *texts: bytes) -> None:
        self.talk.asked = b"\n".join(texts)
        self._waiting.append(self.talk.asked)

    def _server_said(self, kind: int, body: bytes) -> None:
        if kind == READY:
            self._ready(body)
        elif kind == ERROR:
            self._has_failed = True
        elif kind == KEY:
            (self.talk.backend,) = _NUMBER.unpack_from(body)

    def _ready(self, status: bytes) -> None:
        asked = self._waiting.popleft() if self._waiting else b""
        is_idle = status == b"I"
        self.talk.is_in_transaction = not is_idle
        self._transaction.append(asked or b"")
        is_settled = is_idle and not self._has_failed and not _rolls_back(asked)
        self._answers.append(Answer(b"\n".join(self._transaction), asked is None, is_settled))
        self._has_failed = False
        if is_idle:
            self._transaction.clear()


class _Messages:
    """Cuts a stream into messages (a type byte, a length, a body) and reports these kinds."""

    def __init__(self, kinds: set[int], tell: Callable[[int, bytes], None]) -> None:
        self._kinds = kinds
        self._tell = tell
        self._rest = b""
        self._skip = 0

    def feed(self, data: bytes) -> None:
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            data = data[skipped:]
        if self._rest:
            data = self._rest + data
        start, size = 0, len(data)
        while size - start >= _FRAME.size:
            kind, length = _FRAME.unpack_from(data, start)
            end = start + 1 + length
            if end > size and size - start < ENOUGH:
                break
            if kind in self._kinds:
                self._tell(kind, data[start + _FRAME.size : min(end, size)])
            self._skip = max(0, end - size)
            start = min(end, size)
        self._rest = data[start:]


def inside_a_message(data: bytes) -> int:
    """Where to cut these messages so that one of them is torn: the one in their middle."""
    start = 0
    while len(data) - start >= _FRAME.size:
        end = start + 1 + int(_FRAME.unpack_from(data, start)[1])
        if end > len(data) // 2:
            return min(start + 1 + (end - start) // 2, len(data) - 1)
        start = end
    return len(data) // 2


def _rolls_back(asked: bytes | None) -> bool:
    return asked is not None and asked[:8].upper() == b"ROLLBACK"
