"""From the name of a statement to its text: read once, schema filled in, placeholders as a driver
wants them."""

import re
from enum import Enum
from functools import cache
from importlib.resources import files

from graphile_worker.sql.identifiers import Schemas, quote_identifier

_FOLDER = files("graphile_worker.sql")
_SCHEMA = re.compile(r"(?<!:):(schema|ext_schema)\b")
_OTHER_COLONS = re.compile(r"::|:(?!(?:schema|ext_schema)\b)")
_PLACEHOLDER = re.compile(r"\$(\d+)")
_BODY = "$gw$"

# What several statements share; one may stand in those before it. Every statement that says jobs
# names the same columns in the same order: see sql/jobs.py.
_FRAGMENTS = (
    "given",
    "soonest_jobs",
    "near_jobs",
    "lock_jobs",
    "other_jobs",
    "lock_job",
    "priorities",
    "take_jobs",
    "taken_columns",
    "job_columns",
    "chosen_jobs",
    "left_jobs",
    "job_state",
    "is_superseded",
    "foreign_objects",
)


class Style(Enum):
    """How a driver writes parameters."""

    NATIVE = "$1"
    PYFORMAT = "%(p1)s"
    SQLALCHEMY = "(:p1)"


@cache
def render(name: str, schemas: Schemas, style: Style) -> str:
    """The text of a statement for these schemas, in that style.

    `name` is a file of statements/, perhaps with conditions (see sql/conditions.py), or
    "folder/file:n" for the n-th statement of a script.
    """
    text = _source(name)
    # Placeholders first: a schema's name may itself look like one.
    match style:
        case Style.PYFORMAT:
            text = _PLACEHOLDER.sub(r"%(p\1)s", text.replace("%", "%%"))
        case Style.SQLALCHEMY:
            text = _OTHER_COLONS.sub(_escaped_colons, text)
            # SQLAlchemy sees no parameter in ":p1::text"; the parentheses make it one.
            text = _PLACEHOLDER.sub(r"(:p\1)", text)
        case Style.NATIVE:
            pass
    return _fill_in(text, schemas, style)


@cache
def render_bytes(name: str, schemas: Schemas) -> bytes:
    """The same in native style, as psycopg takes it."""
    return render(name, schemas, Style.NATIVE).encode()


def script_text(script: str, schemas: Schemas) -> str:
    """A whole script with its comments, for people."""
    return _fill_in(_read(script), schemas, Style.NATIVE)


@cache
def script_statements(script: str) -> tuple[str, ...]:
    """The names under which the statements of a script can be run."""
    return tuple(f"{script}:{n}" for n in range(len(split_script(_read(script)))))


def split_script(text: str) -> list[str]:
    """The statements of one of our scripts: a line's end with a semicolon, outside of bodies."""
    statements, current, in_body = [], [], False
    for line in text.splitlines():
        current.append(line)
        in_body ^= line.count(_BODY) % 2 == 1
        if line.endswith(";") and not in_body:
            statements.append("\n".join(current).strip().removesuffix(";"))
            current = []
    return statements


def _source(name: str) -> str:
    script, _, position = name.partition(":")
    if position:
        return split_script(_read(script))[int(position)]
    name, _, clauses = name.partition("?")
    text = _with_fragments(_without_comments(_read(f"statements/{name}")))
    return text.replace(":conditions", _conditions(clauses, after=_parameters(text)))


@cache
def _read(path: str) -> str:
    return (_FOLDER / f"{path}.sql").read_text(encoding="utf-8")


def _without_comments(text: str) -> str:
    # A "$1" in a comment would be filled in by drivers that bind on the client's side, and a
    # newline in its value would end the comment.
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    return "\n".join(lines).strip().removesuffix(";")


def _with_fragments(text: str) -> str:
    for name in _FRAGMENTS:
        text = text.replace(f":{name}", _without_comments(_read(f"fragments/{name}")))
    return text


def _conditions(clauses: str, after: int) -> str:
    """What `task&!key|no_key` stands for; their parameters come after so many others."""
    found = []
    for clause in filter(None, clauses.split("&")):
        parts = []
        for name in clause.removeprefix("!").split("|"):
            part = _with_fragments(_without_comments(_read(f"conditions/{name}")))
            parts.append(f"({_renumbered(part, after)})")
            after += _parameters(part)
        # What is not known is not so.
        found.append(f"({' or '.join(parts)}){' is not true' * clause.startswith('!')}")
    return "\n  and ".join(found) or "true"


def _parameters(text: str) -> int:
    return max((int(number) for number in _PLACEHOLDER.findall(text)), default=0)


def _renumbered(text: str, after: int) -> str:
    return _PLACEHOLDER.sub(lambda match: f"${int(match[1]) + after}", text)


def _fill_in(text: str, schemas: Schemas, style: Style) -> str:
    quoted = {
        "schema": quote_identifier(schemas.shared),
        "ext_schema": quote_identifier(schemas.companion),
    }
    if style is Style.PYFORMAT:
        quoted = {key: name.replace("%", "%%") for key, name in quoted.items()}
    if style is Style.SQLALCHEMY:
        quoted = {key: name.replace(":", "\\:") for key, name in quoted.items()}
    body = _BODY
    while any(body in name for name in quoted.values()):
        body = f"{body[:-1]}_$"
    text = text.replace(_BODY, body)
    return _SCHEMA.sub(lambda match: quoted[match[1]], text)


def _escaped_colons(match: re.Match[str]) -> str:
    return match[0].replace(":", "\\:")
