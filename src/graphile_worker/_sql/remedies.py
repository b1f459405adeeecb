"""Cures: SQL for people to read and to run, with the names of their own database filled in."""

import re
from importlib.resources import files

from graphile_worker._sql.identifiers import Schemas, quote_identifier

_FOLDER = files("graphile_worker._sql") / "remedies"

# As in psql: :"it" is a name, :'it' is a value.
_PLACEHOLDER = re.compile(r"""(?<!:):(?:"(\w+)"|'(\w+)'|(schema|ext_schema)\b)""")


def format_remedy(name: str, schemas: Schemas, /, **values: str | int) -> str:
    """The SQL of one cure, ready to be typed."""
    # At once: what is filled in may itself look like a blank.
    given: dict[str, str | int] = {
        "schema": schemas.shared,
        "ext_schema": schemas.companion,
        **values,
    }

    def fill_in(blank: re.Match[str]) -> str:
        if blank[2]:
            return _quote_literal(given[blank[2]])
        return quote_identifier(str(given[blank[1] or blank[3]]))

    text = (_FOLDER / f"{name}.sql").read_text(encoding="utf-8")
    return _PLACEHOLDER.sub(fill_in, text).strip()


def _quote_literal(value: str | int) -> str:
    if isinstance(value, int):
        return str(value)
    quoted = "'" + value.replace("'", "''") + "'"
    # A backslash is one letter whatever the server's settings say.
    return "E" + quoted.replace("\\", "\\\\") if "\\" in value else quoted
