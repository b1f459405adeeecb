"""From the name of a statement to its text: read once, schema filled in, placeholders as a driver
wants them."""

import re
from enum import Enum
from functools import cache
from importlib.resources import files

from graphile_worker._sql.identifiers import Schemas, quote_identifier

_FOLDER = files("graphile_worker._sql")
_SCHEMA = re.compile(r"(?<!:):(schema|ext_schema)\b")
_OTHER_COLONS = re.compile(r"::|:(?!(?:schema|ext_schema)\b)")
_PLACEHOLDER = re.compile(r"\$(\d+)")
_BODY_QUOTE = "$gw$"

# What several statements share; one may stand in those before it. Every statement that says jobs
# names the same columns in the same order: see _sql/queries/jobs.py.
_FRAGMENTS = (
    "claim_params",
    "soonest_jobs",
    "soonest_candidates",
    "lock_jobs",
    "fallback_jobs",
    "lock_job",
    "priorities",
    "claim_locked_jobs",
    "claimed_columns",
    "job_columns",
    "chosen_jobs",
    "skipped_count",
    "job_state",
    "is_superseded",
    "foreign_objects",
)


class ParameterStyle(Enum):
    """How a driver writes parameters."""

    NATIVE = "$1"
    PYFORMAT = "%(p1)s"
    SQLALCHEMY = "(:p1)"


@cache
def render(name: str, schemas: Schemas, style: ParameterStyle) -> str:
    """The text of a statement for these schemas, in that style.

    `name` is a file of statements/, perhaps with conditions (see _sql/conditions.py), or
    "folder/file:n" for the n-th statement of a script.
    """
    text = _load_source(name)
    # Placeholders first: a schema's name may itself look like one.
    match style:
        case ParameterStyle.PYFORMAT:
            text = _PLACEHOLDER.sub(r"%(p\1)s", text.replace("%", "%%"))
        case ParameterStyle.SQLALCHEMY:
            text = _OTHER_COLONS.sub(_escape_colons, text)
            # SQLAlchemy sees no parameter in ":p1::text"; the parentheses make it one.
            text = _PLACEHOLDER.sub(r"(:p\1)", text)
        case ParameterStyle.NATIVE:
            pass
    return _fill_schemas(text, schemas, style)


@cache
def render_bytes(name: str, schemas: Schemas) -> bytes:
    """The same in native style, as psycopg takes it."""
    return render(name, schemas, ParameterStyle.NATIVE).encode()


def render_script(script: str, schemas: Schemas) -> str:
    """A whole script with its comments, for people."""
    return _fill_schemas(_read_file(script), schemas, ParameterStyle.NATIVE)


@cache
def list_script_statements(script: str) -> tuple[str, ...]:
    """The names under which the statements of a script can be run."""
    return tuple(f"{script}:{n}" for n in range(len(split_script(_read_file(script)))))


def split_script(text: str) -> list[str]:
    """The statements of one of our scripts: a line's end with a semicolon, outside of bodies."""
    statements, current, in_body = [], [], False
    for line in text.splitlines():
        current.append(line)
        in_body ^= line.count(_BODY_QUOTE) % 2 == 1
        if line.endswith(";") and not in_body:
            statements.append("\n".join(current).strip().removesuffix(";"))
            current = []
    return statements


def _load_source(name: str) -> str:
    script, _, position = name.partition(":")
    if position:
        return split_script(_read_file(script))[int(position)]
    name, _, clauses = name.partition("?")
    text = _expand_fragments(_strip_comments(_read_file(f"statements/{name}")))
    return text.replace(":conditions", _build_conditions(clauses, offset=_count_parameters(text)))


@cache
def _read_file(path: str) -> str:
    return (_FOLDER / f"{path}.sql").read_text(encoding="utf-8")


def _strip_comments(text: str) -> str:
    # A "$1" in a comment would be filled in by drivers that bind on the client's side, and a
    # newline in its value would end the comment.
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    return "\n".join(lines).strip().removesuffix(";")


def _expand_fragments(text: str) -> str:
    for name in _FRAGMENTS:
        text = text.replace(f":{name}", _strip_comments(_read_file(f"fragments/{name}")))
    return text


def _build_conditions(clauses: str, offset: int) -> str:
    """What `task&!key|no_key` stands for; their parameters come after so many others."""
    found = []
    for clause in filter(None, clauses.split("&")):
        parts = []
        for name in clause.removeprefix("!").split("|"):
            part = _expand_fragments(_strip_comments(_read_file(f"conditions/{name}")))
            parts.append(f"({_renumber(part, offset)})")
            offset += _count_parameters(part)
        # What is not known is not so.
        found.append(f"({' or '.join(parts)}){' is not true' * clause.startswith('!')}")
    return "\n  and ".join(found) or "true"


def _count_parameters(text: str) -> int:
    return max((int(number) for number in _PLACEHOLDER.findall(text)), default=0)


def _renumber(text: str, offset: int) -> str:
    return _PLACEHOLDER.sub(lambda match: f"${int(match[1]) + offset}", text)


def _fill_schemas(text: str, schemas: Schemas, style: ParameterStyle) -> str:
    quoted = {
        "schema": quote_identifier(schemas.shared),
        "ext_schema": quote_identifier(schemas.companion),
    }
    if style is ParameterStyle.PYFORMAT:
        quoted = {key: name.replace("%", "%%") for key, name in quoted.items()}
    if style is ParameterStyle.SQLALCHEMY:
        quoted = {key: name.replace(":", "\\:") for key, name in quoted.items()}
    body = _BODY_QUOTE
    while any(body in name for name in quoted.values()):
        body = f"{body[:-1]}_$"
    text = text.replace(_BODY_QUOTE, body)
    return _SCHEMA.sub(lambda match: quoted[match[1]], text)


def _escape_colons(match: re.Match[str]) -> str:
    return match[0].replace(":", "\\:")
