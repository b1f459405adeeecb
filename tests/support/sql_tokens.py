"""What a SQL file names: its function calls, operators and relations of the catalog.

A small tokenizer is enough: it knows comments, strings, quoted names, dollar quotes (whose contents
it reads as SQL), parameters and the blanks `:schema`, `:"name"` and `:'value'`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "src/graphile_worker/_sql/statements",
    "src/graphile_worker/_sql/fragments",
    "src/graphile_worker/_sql/conditions",
    "src/graphile_worker/_sql/remedies",
    "src/graphile_worker/_sql/schema",
    "src/graphile_worker/_sql/ext",
    "deploy/sql",
)

_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
    | (?P<comment>--[^\n]*)
    | (?P<string>[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")*")
    | (?P<tag>\$[A-Za-z_]*\$)
    | (?P<parameter>\$\d+)
    | (?P<cast>::)
    | (?P<blank>:(?:"\w+"|'\w+'|[a-z_]+))
    | (?P<number>\d+(?:\.\d+)?)
    | (?P<word>[A-Za-z_]\w*)
    | (?P<operator>:=|[-+*/<>=~!@\#%^&|`?]+)
    | (?P<mark>[(),;.:\[\]])
    """,
    re.VERBOSE,
)

# Words before a parenthesis that are syntax, not names. PostgreSQL resolves what stands behind them
# without the search path; `extract(… from …)` is pg_catalog.extract for any path.
# fmt: off
SYNTAX = frozenset(
    (
        "all", "and", "any", "array", "as", "between", "by", "case", "cast", "check", "coalesce",
        "conflict", "else", "exists", "extract", "filter", "from", "greatest", "group", "identity",
        "if", "in", "include", "insert", "interval", "into", "is", "join", "key", "lateral",
        "least", "limit", "materialized", "not", "nullif", "offset", "on", "or", "over", "perform",
        "references", "return", "row", "select", "set", "table", "then", "union", "unique",
        "update", "using", "vacuum", "values", "when", "where", "with",
    )
)
# fmt: on

# The word after one of these is a name that the statement gives, with its columns behind it.
_NAMING = frozenset(("as", "function", "table"))

_RELATION_FOLLOWS = frozenset(("from", "join", ","))
_SCHEMAS = ("pg_catalog", "pg_temp")

# Words before the name of an access method, or of a kind of partitions. These have no schema. In a
# window, `partition by` follows a parenthesis that opens.
_METHODS = (("using", "brin"), (")", "partition", "by", "list"))

# Operators that PostgreSQL looks up by name for syntax that is written in words.
_WORDS = {
    "like": ("~~", "!~~"),
    "ilike": ("~~*", "!~~*"),
    "between": (">=", "<="),
    "in": ("=", "<>"),
    "distinct": ("=",),
    "nullif": ("=",),
    "case": ("=",),
}


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class Call:
    """A name before a parenthesis; `schema` is what stands before its dot."""

    schema: str | None
    name: str
    arguments: int
    at: int

    @property
    def may_be_unqualified(self) -> bool:
        # With several arrays, only the plain name is syntax: for pg_catalog.unnest of each of them.
        return self.name == "unnest" and self.arguments > 1


def sql_files() -> list[Path]:
    """All SQL that this package sends, or gives people to run."""
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.sql"))


def tokens(text: str) -> list[Token]:
    """The tokens of a text, without space and comments."""
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise ValueError(f"no SQL token at {text[at : at + 20]!r}")
        if match.lastgroup not in ("space", "comment"):
            found.append(Token(match.lastgroup, match[0], at))
        at = match.end()
    return found


def calls(text: str) -> Iterator[Call]:
    """Every function call, qualified or not."""
    found = tokens(text)
    for n, token in enumerate(found[:-1]):
        if token.kind not in ("word", "quoted") or found[n + 1].text != "(":
            continue
        before = found[n - 1].text.lower() if n else ""
        if before != "." and (token.text.lower() in SYNTAX or before in _NAMING):
            continue
        if _names_method(found, n):
            continue
        schema = found[n - 2].text if before == "." else None
        yield Call(schema, token.text, _arguments(found[n + 1 :]), token.at)


def relations(text: str) -> Iterator[tuple[bool, str, int]]:
    """Every relation of the catalog that is read: is it qualified, its name, where."""
    found = tokens(text)
    for n, token in enumerate(found):
        before = found[n - 1].text.lower() if n else ""
        if (
            token.kind == "string"
            and _after(found, n) == "::"
            and _after(found, n + 1) == "regclass"
        ):
            yield "." in token.text, token.text.strip("'"), token.at
        elif token.kind != "word" or not token.text.startswith("pg_") or _after(found, n) == "(":
            continue
        elif before == "." and found[n - 2].text == "pg_catalog":
            yield True, token.text, token.at
        elif before in _RELATION_FOLLOWS and token.text not in _SCHEMAS:
            yield False, token.text, token.at


def operators(text: str) -> set[str]:
    """The operators that a text looks up, those that are written in words included."""
    found = tokens(text)
    used: set[str] = set()
    for n, token in enumerate(found):
        if token.kind == "word":
            used.update(_WORDS.get(token.text.lower(), ()))
        elif token.kind == "operator" and token.text not in ("=>", ":=") and not _is_star(found, n):
            used.add("<>" if token.text == "!=" else token.text)
    return used


def line_of(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _after(found: list[Token], n: int) -> str:
    return found[n + 1].text if n + 1 < len(found) else ""


def _names_method(found: list[Token], n: int) -> bool:
    words = [token.text.lower() for token in found[max(0, n - 3) : n + 1]]
    return any(tuple(words[-len(method) :]) == method for method in _METHODS)


def _is_star(found: list[Token], n: int) -> bool:
    """`count(*)`, `jobs.*` and `select *` multiply nothing."""
    before = found[n - 1].text.lower() if n else ""
    return found[n].text == "*" and before in ("(", ".", "select", ",")


def _arguments(found: list[Token]) -> int:
    """How many arguments a list in parentheses has, which the tokens begin with."""
    depth, commas = 0, 0
    for n, token in enumerate(found):
        if token.text in ("(", "["):
            depth += 1
        elif token.text in (")", "]"):
            depth -= 1
            if depth == 0:
                return 0 if n == 1 else commas + 1
        elif token.text == "," and depth == 1:
            commas += 1
    raise ValueError("a parenthesis is not closed")
