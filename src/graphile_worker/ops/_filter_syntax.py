"""The syntax of filters: fields, values, quotes, escapes and wildcards, with their columns."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from graphile_worker.errors import FilterError

FIELD_NAME_PATTERN = re.compile(r"[A-Za-z_]+(?=[:.])")
SPACE_PATTERN = re.compile(r"\s*")
# An escaped character, a wildcard, or other text.
PART_PATTERN = re.compile(r"\\(.)|(\*)|([^\\*]+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Token:
    """A value as written, split at its wildcards."""

    parts: tuple[str, ...]
    is_quoted: bool
    column: int

    @property
    def text(self) -> str:
        return "*".join(self.parts)

    @property
    def unquoted_text(self) -> str | None:
        return None if self.is_quoted else self.text

    def build_error(self, expected: str) -> FilterError:
        return FilterError(self.column, expected, self.text)


class Scanner:
    """Reads a filter from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        for position, letter in enumerate(text):
            if letter == "\x00" or "\ud800" <= letter <= "\udfff":
                raise FilterError(position + 1, "text that PostgreSQL can store", letter)

    @property
    def column(self) -> int:
        return self._position + 1

    @property
    def remaining(self) -> str:
        return self._text[self._position :]

    def advance_to_term(self) -> bool:
        """Skip spaces, and return whether a term follows."""
        self._match(SPACE_PATTERN)
        return bool(self.remaining)

    def accept(self, text: str) -> bool:
        """Skip this text, and return whether it was there."""
        is_next = self._text.startswith(text, self._position)
        self._position += len(text) * is_next
        return is_next

    def read_field_name(self) -> str | None:
        """Read the name of a field if a colon or a path follows it."""
        return self._match(FIELD_NAME_PATTERN) or None

    def read_path(self) -> tuple[str, ...]:
        """Read the keys that lead to a value of the payload."""
        path = []
        while self.accept("."):
            path.append(self._read_token(".:,", expected="a key of the payload").text)
        if not path:
            raise FilterError(self.column, "a key, as in payload.user.id:42", self.remaining)
        return tuple(path)

    def read_tokens(self) -> Iterator[Token]:
        """Read the values of a term."""
        yield self._read_token(",", expected="a value")
        while self.accept(","):
            yield self._read_token(",", expected="a value")

    def _read_token(self, ends: str, *, expected: str) -> Token:
        column = self.column
        is_quoted = self.accept('"')
        end = '"' if is_quoted else rf"\s{ends}"
        text = self._match(re.compile(rf"(?:\\.|[^\\{end}])*", re.DOTALL))
        if self.remaining == "\\":
            raise FilterError(self.column + 1, "a character after the backslash", "")
        if is_quoted:
            if not self.accept('"'):
                raise FilterError(column, 'a " at the end', self._text[column - 1 :])
            if self.remaining and not re.match(rf"[\s{ends}]", self.remaining):
                raise FilterError(self.column, "a space or a comma", self.remaining)
        elif not text:
            raise FilterError(column, expected, "")
        parts = [""]
        for escaped, wildcard, other in PART_PATTERN.findall(text):
            if wildcard:
                parts.append("")
            else:
                parts[-1] += escaped or other
        return Token(tuple(parts), is_quoted, column)

    def _match(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._position)
        if match is None:
            return ""
        self._position = match.end()
        return match[0]
