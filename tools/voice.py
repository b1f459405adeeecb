"""Check the words of pages, comments, docstrings, messages and test names.

`python -m tools.voice [PATH …]` lists each line that uses a word which the project avoids, with the
word to use instead. A line that needs such a word ends with the marker `voice: allow`.

`python -m tools.voice --count [PAGE …]` counts the words of pages outside code blocks, and how
often they address the reader.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.pages import DOCS, mask_code_blocks

ROOT = Path(__file__).parents[1]
MARKER = "voice: allow"

# Patterns of words to avoid, and the words to use instead.
AVOIDED = {
    r"nobody|somebody|whoever|everybody": "name the actor",
    r"whatever": "any, every",
    r"anew": "again",
    r"so many|so much|so long|so often|as many as that": "give the amount a name",
    r"of ours|of yours|of theirs|of (?:its|their|your|one's) own": "its, your, separate",
    r"(?:is|are) no(?! longer| more than| less than| later than| earlier than)": "is not",
    r"mend(?:s|ed|ing)?|cures?|cured": "fix",
    r"in vain": "without effect",
    r"(?:stands?|stood) (?:still|above|for nothing)": "blocked; overrides",
    r"go(?:es)? by": "uses, follows",
    r"hand(?:s|ed|ing)? (?:\w+ )?back": "release, return",
    r"tried again|try again later|later and later|beg(?:un|in|ins) again": "retried",
    r"for good": "permanently",
    r"back-off|growing pauses": "backoff",
    r"(?:is|was|are|were) away|database is gone": "unreachable",
    r"hears?|heard|hearing": "receives, listens",
    r"says? that|said|says": "reports, contains, names",
    r"tells?|told": "reports, shows, sets",
    r"lives|live on|is alive and": "runs, is defined",
    r"refus(?:es?|ed|ing|al)": "reject",
    r"make(?:s)? no sense|made no sense": "is invalid",
    r"by the clock": "on a schedule",
    r"rights": "permissions, privileges",
    r"the original|the reference implementation": "Graphile Worker for Node",
    r"silent(?:ly)? for|falls? silent|fell silent": "without heartbeats",
    r"makes? up for|owes?|owed": "backfill",
    r"what is (?:no|nothing)": "name the thing",
    r"once more": "again",
}
# A space also stands for a line break.
_GROUPS = "|".join(rf"(?P<w{i}>{p})" for i, p in enumerate(AVOIDED)).replace(" ", r"\s+")
PATTERN = re.compile(rf"\b(?:{_GROUPS})\b", re.I)
BETWEEN_COMMENTS = re.compile(r"\n[ \t]*# ?")
TEST_NAME = re.compile(r"^[ ]*(?:async )?def (test_\w+)", re.M)
# Parts of a page that are not prose: comments, code and the addresses of links.
NOT_PROSE = re.compile(r"<!--.*?-->|`[^`\n]+`|\]\([^)\s]+\)|https?://\S+", re.S)
ADDRESS = re.compile(r"\b(?:you|your|yours|yourself|you're|you've|you'll)\b", re.I)
SUFFIXES = ("*.md", "*.py", "*.sql", "*.svg")
# The feature lists are generated or are a record of the founding documents.
UNCOUNTED = {"features.md"}
STRINGS = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
REPLACEMENTS = list(AVOIDED.values())


@dataclass(frozen=True, order=True)
class Finding:
    """A word to avoid, its position, and its replacement."""

    path: str
    line: int
    word: str
    replacement: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word!r}: {self.replacement}"


def find_words(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the offset, the word and its replacement for each avoided word of a text."""
    for match in PATTERN.finditer(text):
        kind = match.lastgroup or ""
        yield match.start(), " ".join(match.group().split()), REPLACEMENTS[int(kind[1:])]


def _scan(path: str, first_line: int, text: str, lines: list[str]) -> Iterator[Finding]:
    for offset, word, replacement in find_words(text):
        line = first_line + text.count("\n", 0, offset)
        if MARKER not in lines[line - 1]:
            yield Finding(path, line, word, replacement)


def _iter_prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments and the strings with a space of a module, each with its line.

    Adjacent comment lines are one text, so that an expression broken over two lines is found.
    """
    comments: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row = token.start[0]
            if comments and row == last + 1:
                comments.append(token.string.lstrip("# "))
            else:
                if comments:
                    yield first, "\n".join(comments)
                comments, first = [token.string.lstrip("# ")], row
            last = row
        elif token.type in STRINGS and " " in token.string:
            yield token.start[0], token.string
    if comments:
        yield first, "\n".join(comments)


def _iter_test_names(source: str) -> Iterator[tuple[int, str]]:
    for match in TEST_NAME.finditer(source):
        yield source.count("\n", 0, match.start()) + 1, match[1].replace("_", " ")


def mask_page(text: str) -> str:
    """Return a page with spaces in place of everything that is not prose."""
    text = mask_code_blocks(text)
    return NOT_PROSE.sub(lambda part: re.sub(r"[^\n]", " ", part[0]), text)


def count_words(text: str) -> int:
    """Count the words of a page, inline code included, outside code blocks and comments."""
    text = re.sub(r"<!--.*?-->", "", mask_code_blocks(text), flags=re.S)
    return sum(any(map(str.isalnum, word)) for word in text.split())


def count_pages(paths: Iterable[Path]) -> str:
    """Return a table of pages with their words and how often they address the reader."""
    lines = []
    total = addressed = 0
    for path in paths:
        text = path.read_text()
        words, you = count_words(text), len(ADDRESS.findall(mask_page(text)))
        total, addressed = total + words, addressed + you
        lines.append(f"{words:7,} {1000 * you / max(words, 1):6.1f}  {path}")
    lines.append(f"{total:7,} {1000 * addressed / max(total, 1):6.1f}  in all")
    return "\n".join(["  words  you/1,000", *lines])


def check(path: Path) -> list[Finding]:
    """Return the findings of one file: all prose of the package, only test names of tests."""
    relative = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    source = path.read_text()
    texts: Iterable[tuple[int, str]] = [(1, source)]
    if path.suffix == ".py" and relative.parts[0] == "tests":
        texts = _iter_test_names(source)
    elif path.suffix == ".md":
        texts = [(1, mask_page(source))]
    elif path.suffix == ".py":
        # Most modules have no such word, and tokenizing them takes long.
        is_candidate = PATTERN.search(BETWEEN_COMMENTS.sub("\n", source))
        texts = _iter_prose(source) if is_candidate else ()
    lines = source.splitlines()
    return [finding for line, text in texts for finding in _scan(str(relative), line, text, lines)]


def list_files(paths: list[Path]) -> Iterator[Path]:
    """Yield the pages, pictures, Python and SQL files of folders, and other paths as they are."""
    for path in paths:
        if path.is_dir():
            yield from sorted(p for s in SUFFIXES for p in path.rglob(s))
        else:
            yield path


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--count"]:
        pages = [Path(each) for each in arguments[1:]] or [DOCS]
        found = [page for page in list_files(pages) if page.suffix == ".md"]
        print(count_pages(page for page in found if page.name not in UNCOUNTED))
        return 0
    paths = [Path(a).resolve() for a in arguments] or [ROOT / "src", ROOT / "tests"]
    findings = [finding for path in list_files(paths) for finding in check(path)]
    for finding in findings:
        print(finding)
    print(f"{len(findings)} to change", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
