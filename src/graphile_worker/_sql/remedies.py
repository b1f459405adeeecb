"""Remedies: SQL for people to run, with the names of their database filled in."""

import re
from importlib.resources import files

from graphile_worker._sql.identifiers import Schemas, quote_identifier

_FOLDER = files("graphile_worker._sql") / "remedies"

# As in psql: :"x" is an identifier, :'x' is a literal.
_PLACEHOLDER = re.compile(r"""(?<!:):(?:"(\w+)"|'(\w+)'|(schema|ext_schema)\b)""")


def format_remedy(name: str, schemas: Schemas, /, **values: str | int) -> str:
    """Return the SQL of a file of remedies/, ready to be run."""
    known: dict[str, str | int] = {
        "schema": schemas.shared,
        "ext_schema": schemas.companion,
        **values,
    }

    def fill_in(placeholder: re.Match[str]) -> str:
        if placeholder[2]:
            return _quote_literal(known[placeholder[2]])
        return quote_identifier(str(known[placeholder[1] or placeholder[3]]))

    text = (_FOLDER / f"{name}.sql").read_text(encoding="utf-8")
    # All in one pass: a value may look like a placeholder.
    return _PLACEHOLDER.sub(fill_in, text).strip()


def _quote_literal(value: str | int) -> str:
    if isinstance(value, int):
        return str(value)
    quoted = "'" + value.replace("'", "''") + "'"
    # The E form does not depend on the server's standard_conforming_strings.
    return "E" + quoted.replace("\\", "\\\\") if "\\" in value else quoted
