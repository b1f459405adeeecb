"""Render statements as text, with the schemas filled in and the parameters of a driver."""

import re
from enum import Enum
from functools import cache
from importlib.resources import files

from graphile_worker._sql.identifiers import Schemas, quote_identifier
from graphile_worker._sql.statement import ClauseText, Statement

_FOLDER = files("graphile_worker._sql")
_SCHEMA = re.compile(r"(?<!:):(schema|ext_schema)\b")
_OTHER_COLONS = re.compile(r"::|:(?!(?:schema|ext_schema)\b)")
_PLACEHOLDER = re.compile(r"\$(\d+)")
_BODY_QUOTE = "$gw$"

# Parts that several statements share. A fragment may contain those that follow it here. Every
# statement that returns jobs has the same columns in the same order: see _sql/queries/jobs.py.
_FRAGMENTS = (
    "kept_runs",
    "outcome_page",
    "stored_outcome_columns",
    "outcome_columns",
    "claim_params",
    "soonest_jobs",
    "soonest_columns",
    "soonest_candidates",
    "lock_jobs",
    "fallback_jobs",
    "lock_job",
    "priorities",
    "claim_locked_jobs",
    "claimed_columns",
    "added_jobs",
    "job_columns",
    "stored_columns",
    "delayed_run_at",
    "chosen_jobs",
    "skipped_count",
    "job_state",
    "failed_at",
    "is_superseded",
    "keyed_jobs",
    "given_jobs",
    "new_job_columns",
    "is_inspected",
    "lock_names",
    "foreign_objects",
    "are_rows_hidden",
    "audit_access",
)


class ParameterStyle(Enum):
    """How a driver writes parameters."""

    NATIVE = "$1"
    PYFORMAT = "%(p1)s"
    SQLALCHEMY = "(:p1)"


@cache
def render(statement: str | Statement, schemas: Schemas, style: ParameterStyle) -> str:
    """Return the text of a statement for these schemas, in this style."""
    text = _load_source(statement)
    # Placeholders first: the name of a schema may look like one.
    match style:
        case ParameterStyle.PYFORMAT:
            text = _PLACEHOLDER.sub(r"%(p\1)s", text.replace("%", "%%"))
        case ParameterStyle.SQLALCHEMY:
            text = _OTHER_COLONS.sub(lambda match: match[0].replace(":", "\\:"), text)
            # In ":p1::text" SQLAlchemy finds a parameter only with the parentheses.
            text = _PLACEHOLDER.sub(r"(:p\1)", text)
        case ParameterStyle.NATIVE:
            pass
    return _fill_schemas(text, schemas, style)


@cache
def render_bytes(statement: str | Statement, schemas: Schemas) -> bytes:
    """Return the text in native style, as psycopg takes it."""
    return render(statement, schemas, ParameterStyle.NATIVE).encode()


def render_script(path: str, schemas: Schemas) -> str:
    """Return a whole script with its comments, for people."""
    return _fill_schemas(_read_file(path), schemas, ParameterStyle.NATIVE)


@cache
def list_script_statements(path: str) -> tuple[Statement, ...]:
    return tuple(
        Statement(path, position=position)
        for position in range(len(split_script(_read_file(path))))
    )


def split_script(text: str) -> list[str]:
    """Return the statements of a script. Each ends with a semicolon at the end of a line."""
    statements, current, in_body = [], [], False
    for line in text.splitlines():
        current.append(line)
        in_body ^= line.count(_BODY_QUOTE) % 2 == 1
        if line.endswith(";") and not in_body:
            statements.append("\n".join(current).strip().removesuffix(";"))
            current = []
    return statements


def _load_source(statement: str | Statement) -> str:
    if isinstance(statement, str):
        statement = Statement(f"statements/{statement}")
    if statement.position is not None:
        return split_script(_read_file(statement.path))[statement.position]
    text = _load_expanded(statement.path)
    return text.replace(
        ":conditions", _build_conditions(statement.clauses, offset=_count_parameters(text))
    )


@cache
def _read_file(path: str) -> str:
    return (_FOLDER / f"{path}.sql").read_text(encoding="utf-8")


def _load_expanded(path: str) -> str:
    text = _strip_comments(_read_file(path))
    for name in _FRAGMENTS:
        text = text.replace(f":{name}", _strip_comments(_read_file(f"fragments/{name}")))
    return text


def _strip_comments(text: str) -> str:
    # Drivers that bind on the client's side would fill in a "$1" in a comment, and a newline in
    # its value would end the comment.
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    return "\n".join(lines).strip().removesuffix(";")


def _build_conditions(clauses: tuple[ClauseText, ...], offset: int) -> str:
    """Return the clauses as SQL. `offset` is the number of parameters before theirs."""
    conditions = []
    for clause in clauses:
        parts = []
        for name in clause.conditions:
            part = _load_expanded(f"conditions/{name}")
            parts.append(f"({_renumber(part, offset)})")
            offset += _count_parameters(part)
        # A condition that is null counts as false.
        conditions.append(f"({' or '.join(parts)}){' is not true' * clause.is_negated}")
    return "\n  and ".join(conditions) or "true"


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
