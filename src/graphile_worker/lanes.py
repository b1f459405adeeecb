"""Lanes: a few named queues for each key, to limit how many of its jobs run at once."""

import hashlib
import random
from uuid import UUID

from graphile_worker.errors import JobSpecError
from graphile_worker.jobs import MAX_QUEUE_NAME_LENGTH, check_text

LaneKey = str | int | UUID

MAX_LANES = 1000
# The name of a queue without the number of its lane, for example "#1000".
MAX_BASE_LENGTH = MAX_QUEUE_NAME_LENGTH - len(f"#{MAX_LANES}")
# The hexadecimal digits of a hash that replaces the end of a longer key, and that choose a lane.
LONG_KEY_DIGITS = 32
LANE_DIGITS = 8


def lane(prefix: str, key: LaneKey, *, of: int, by: LaneKey | None = None) -> str:
    """Choose one of the named queues of a key, so that at most `of` jobs of the key run at once.

    Workers in every language obey named queues, so the limit holds for all of them. Use the same
    `of` wherever you add jobs of the key.

    Args:
        prefix: What the key identifies, for example `tenant`.
        key: The tenant, account or host whose jobs are limited.
        of: Number of lanes of the key, at most 1,000.
        by: Jobs with the same value are in the same lane, one after the other (default: a random
            lane for each call).

    Returns:
        The name of a queue, for example `tenant:42#3`. If the key is too long for a name, its end
        is replaced by a hash.

    Raises:
        JobSpecError: An argument is not valid.
    """
    if isinstance(of, bool) or not isinstance(of, int) or not 1 <= of <= MAX_LANES:
        raise JobSpecError("of", of, f"expected an integer from 1 to {MAX_LANES:,}", "22023")
    base = f"{_format_part('prefix', prefix)}:{_format_part('key', key)}"
    if len(base) > MAX_BASE_LENGTH:
        digest = hashlib.sha256(base.encode()).hexdigest()[:LONG_KEY_DIGITS]
        base = f"{base[: MAX_BASE_LENGTH - LONG_KEY_DIGITS - 1]}~{digest}"
    # Random, because a counter would prefer some lanes of a key when keys take turns.
    number = random.randrange(of) if by is None else _hash(_format_part("by", by)) % of
    return f"{base}#{number + 1}"


def _format_part(argument: str, value: object) -> str:
    # A bool is a mistake, and the text of other objects may differ between processes.
    if isinstance(value, bool) or not isinstance(value, LaneKey):
        raise JobSpecError(argument, value, "expected a str, an int or a UUID", "22023")
    text = check_text(argument, str(value))
    if not text:
        raise JobSpecError(argument, value, "must not be empty", "22023")
    return text


def _hash(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest()[:LANE_DIGITS], 16)
