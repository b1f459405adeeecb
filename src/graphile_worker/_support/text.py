"""Text for people."""

from collections.abc import Iterable


def pluralize(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def suggest(name: str, known: Iterable[str]) -> str:
    """Return the known name that a misspelled one may mean, or else a period."""
    # Imported for a mistake only, as every worker waits for the imports.
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    return f", did you mean {near[0]!r}?" if near else "."
