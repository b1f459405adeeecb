"""Mask the values of keys that may contain secrets, in JSON and in the text of errors.

All other text stays as it is: numbers keep their digits, and keys their order. JSON that is cut off
is masked up to its end.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

MASK = "•••"
JSON_MASK = f'"{MASK}"'

# Characters of a payload that are sent to the browser.
MAX_CHARS = 256 * 1024

# A string, also an unfinished one at the end, a bracket or separator, a scalar, or space.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}\[\],:]|[^\s{}\[\],:"]+|\s+', re.DOTALL)

# In text: a quoted key, the columns in an error of PostgreSQL, the user of a URL, or a name.
_TEXT_KEY = re.compile(
    r"""
    (?P<quote>["'])(?P<key>[^"'\\\n]{1,200})\\*(?P=quote)\s*(?::|=>?)\s*
    |\((?P<columns>[\w, ]{1,200})\)=
    |(?P<url>://[^\s/?#:@"'<>]*:)(?=[^\s/?#"'<>]+@)
    |(?<![\w-])(?P<name>[\w-]{1,200})[ \t]*(?:=>?(?!=)|(?P<colon>:(?![:/])))[ \t]*
    """,
    re.VERBOSE,
)
# The names of exceptions are not keys, although a colon follows them.
_EXCEPTION_NAMES = ("Error", "Exception", "Warning")

# A quoted text, also one inside of a quoted text or without an end.
_QUOTED = r"""
    (?P<slashes>\\+)(?P<quote>["'])(?:.*?(?<!\\)(?P=slashes)(?P=quote)|.*)
    |[bru]{0,2}(?:"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?)
"""
_VALUE_FLAGS = re.VERBOSE | re.DOTALL | re.IGNORECASE
# A word, also one after the name of a scheme. After a colon, the text up to a comma or line end.
_WORD_VALUE = re.compile(
    rf"""{_QUOTED}|(?:(?:bearer|basic|digest|token)[ \t]+)?[^\s&,;(){{}}\[\]"']+""", _VALUE_FLAGS
)
_LINE_VALUE = re.compile(rf"""{_QUOTED}|[^\r\n&,;(){{}}\[\]"']+""", _VALUE_FLAGS)
_URL_VALUE = re.compile(r"""[^\s/?#"'<>]+(?=@)""")

_BRACKET_OR_STRING = re.compile(r"""[(){}\[\]]|"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?""", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RedactedText:
    """JSON with masked values, and whether one was masked."""

    text: str
    is_redacted: bool


class Redactor:
    """Masks the values of keys that match one of the patterns, upper or lower case.

    Args:
        patterns: Regular expressions, which a key contains.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        joined = "|".join(f"(?:{each})" for each in patterns)
        self._pattern = re.compile(joined, re.IGNORECASE) if joined else None

    def matches(self, key: str) -> bool:
        """Return whether the value of a key is masked."""
        return self._pattern is not None and self._pattern.search(key) is not None

    def redact_json(self, text: str) -> RedactedText:
        """Mask values in JSON.

        Args:
            text: JSON, complete or cut off at its end.
        """
        if self._pattern is None:
            return RedactedText(text, False)
        scanner = _JsonScanner(text, self.matches, self.redact_text)
        return RedactedText("".join(scanner.scan()), scanner.has_masked)

    def redact_text(self, text: str) -> str:
        """Mask values in a text that may contain JSON, dictionaries of Python or URLs.

        Args:
            text: For example an error.
        """
        if self._pattern is None:
            return text
        return "".join(self._iter_parts(text))

    def _iter_parts(self, text: str) -> Iterator[str]:
        shown, position = 0, 0
        while match := _TEXT_KEY.search(text, position):
            position = match.end()
            end = _find_value_end(text, match) if self._is_secret(match) else position
            if end > position:
                yield text[shown:position]
                yield MASK
                shown = position = end
        yield text[shown:]

    def _is_secret(self, match: re.Match[str]) -> bool:
        if match["url"]:
            return True
        if match["colon"] and match["name"].endswith(_EXCEPTION_NAMES):
            return False
        return self.matches(match["key"] or match["columns"] or match["name"])


def _find_value_end(text: str, key: re.Match[str]) -> int:
    """Find the end of the value that follows a key."""
    pattern = _URL_VALUE if key["url"] else _LINE_VALUE if key["colon"] else _WORD_VALUE
    value = pattern.match(text, key.end())
    end = key.end() if value is None else value.end()
    if text[end : end + 1] not in tuple("([{"):
        return end
    # A collection, or the arguments of a call.
    depth = 0
    for match in _BRACKET_OR_STRING.finditer(text, end):
        depth += (match[0] in "([{") - (match[0] in ")]}")
        if depth == 0:
            return match.end()
    return len(text)


class _JsonScanner:
    """Reads the tokens of JSON, and leaves out the values of keys that match.

    Strings may contain JSON, URLs and errors, which are masked too.
    """

    def __init__(
        self, text: str, matches: Callable[[str], bool], redact_text: Callable[[str], str]
    ) -> None:
        self.has_masked = False
        self._text = text
        self._matches = matches
        self._redact_text = redact_text
        # For each open object and array: whether it is an object.
        self._open: list[bool] = []
        # Whether a string is a key, and whether the value that follows is masked.
        self._is_key_next = False
        self._must_mask = False
        self._masked_depth: int | None = None

    def scan(self) -> Iterator[str]:
        """Yield the parts of the text."""
        for match in _TOKEN.finditer(self._text):
            token = match[0]
            first = token[0]
            if self._masked_depth is not None:
                self._skip(first)
            elif first.isspace():
                yield token
            elif first in "{[":
                if self._must_mask:
                    yield self._mask()
                    self._masked_depth = 1
                else:
                    self._open.append(first == "{")
                    self._is_key_next = first == "{"
                    yield token
            elif first in "}]":
                if self._open:
                    self._open.pop()
                self._is_key_next = False
                yield token
            elif first == ",":
                self._is_key_next = bool(self._open) and self._open[-1]
                yield token
            elif first == ":":
                yield token
            elif first == '"' and self._is_key_next:
                self._is_key_next = False
                self._must_mask = self._matches(_decode(token))
                yield token
            elif self._must_mask:
                yield self._mask()
            elif first == '"' and (":" in token or "=" in token):
                yield self._redact_string(token)
            else:
                yield token

    def _redact_string(self, token: str) -> str:
        text = _decode(token)
        redacted = self._redact_text(text)
        if redacted == text:
            return token
        self.has_masked = True
        # Half of a surrogate pair stays the escape sequence that it was.
        return json.dumps(redacted, ensure_ascii=False).encode(errors="backslashreplace").decode()

    def _mask(self) -> str:
        self.has_masked = True
        self._must_mask = False
        return JSON_MASK

    def _skip(self, first: str) -> None:
        assert self._masked_depth is not None
        self._masked_depth += (first in "{[") - (first in "}]")
        if self._masked_depth == 0:
            self._masked_depth = None


def _decode(token: str) -> str:
    """Return the text of a string of JSON, which may be cut off."""
    for text in (token, f'{token}"', token.rstrip("\\") + '"'):
        with suppress(ValueError):
            return str(json.loads(text, strict=False))
    return token
