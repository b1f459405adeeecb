"""List limits of tasks, and change them while workers run."""

import re
from collections.abc import Mapping
from typing import Any

from graphile_worker._sql.plans.limits import (
    plan_can_read_limits,
    plan_get_slot_renters,
    plan_list_limits,
    plan_reset_limit,
    plan_set_rate,
    plan_set_slots,
)
from graphile_worker._sql.queries.limits import LimitKind, LimitState
from graphile_worker._support.durations import format_exact_duration, parse_duration
from graphile_worker.errors import ConfigurationError
from graphile_worker.limits import MICROSECOND, ConcurrencyLimit, Limit, RateLimit
from graphile_worker.ops.text import format_seconds

__all__ = [
    "LimitKind",
    "LimitState",
    "describe_shortage",
    "encode_limit",
    "encode_state",
    "format_change",
    "format_limit",
    "format_placeholders",
    "format_use",
    "parse_limit",
    "plan_can_read_limits",
    "plan_get_slot_renters",
    "plan_list_limits",
    "plan_reset_limit",
    "plan_set_rate",
    "plan_set_slots",
]

# A text lists this many pools.
MAX_POOLS = 3

SLOTS_PATTERN = re.compile(r"[0-9]{1,10}")
RATE_PATTERN = re.compile(r"([0-9]{1,10})/(.+)")


def parse_limit(text: str, *, burst: int | None = None) -> Limit:
    """Parse the values of a limit, for example `20` or `50/1m`.

    Args:
        text: Number of slots, or starts and a period.
        burst: Burst of a rate limit (default: 1).

    Returns:
        The limit, without a name.

    Raises:
        ConfigurationError: The text is not valid.
    """
    if SLOTS_PATTERN.fullmatch(text):
        if burst is not None:
            raise ConfigurationError("a concurrency limit has no burst")
        return ConcurrencyLimit(int(text))
    match = RATE_PATTERN.fullmatch(text)
    # A unit alone means one of it.
    period = match and parse_duration(match[2] if match[2][0].isdigit() else f"1{match[2]}")
    if not match or not period:
        raise ConfigurationError(f"expected a limit, for example 20 or 50/1m, got {text!r}")
    return RateLimit(int(match[1]), per=period, burst=1 if burst is None else burst)


def format_limit(limit: Limit) -> str:
    """Format the values of a limit as `parse_limit` reads them, without the burst.

    Args:
        limit: The limit.

    Returns:
        A text, for example `20` or `50/1m`.
    """
    if isinstance(limit, ConcurrencyLimit):
        return str(limit.slots)
    return f"{limit.starts}/{format_exact_duration(limit.per)}"


def format_use(state: LimitState) -> str:
    """Format how much of a limit is in use.

    Args:
        state: The limit.

    Returns:
        A text, for example `18 of 20 in use` or `next start in 0.4s`.
    """
    if isinstance(state.limit, ConcurrencyLimit):
        wanted = ", a worker waits" if state.is_wanted else ""
        return f"{state.used_slots} of {state.limit.slots} in use{wanted}"
    if not state.seconds_until_next:
        return "next start now"
    return f"next start in {format_seconds(state.seconds_until_next)}"


def describe_shortage(state: LimitState, renters: Mapping[str, int] | None = None) -> str:
    """Describe what a job waits for while its limit is exhausted.

    Args:
        state: The limit.
        renters: How many slots each pool rents, to name the pools.

    Returns:
        A text, for example `a slot of 'stripe' (20 of 20 rented by pypool-…)` or
        `a token of 'stripe' (50 per 1m, next in 0.4s)`.
    """
    if not isinstance(state.limit, ConcurrencyLimit):
        return f"a token of {state.name!r} ({state.limit}, {_format_next(state)})"
    pools = list(renters or ())
    more = f" and {len(pools) - MAX_POOLS} more" if len(pools) > MAX_POOLS else ""
    by = f" by {', '.join(pools[:MAX_POOLS])}{more}" if pools else ""
    return f"a slot of {state.name!r} ({state.used_slots} of {state.limit.slots} rented{by})"


def format_placeholders(state: LimitState) -> tuple[str, str]:
    """Format the arguments of `limits set` with N in the place of the number.

    Args:
        state: The limit.

    Returns:
        Its name and its value, for example `stripe` and `N/1m`.
    """
    _, slash, period = format_limit(state.limit).partition("/")
    return state.name, f"N{slash}{period}"


def format_change(state: LimitState) -> str:
    """Describe the values in force after a change.

    Args:
        state: The limit.

    Returns:
        A text, for example `5 at a time (in the app: 20 at a time)`.
    """
    before = "" if state.set_by is None else f" (in the app: {state.defined})"
    return f"{state.limit}{before}"


def encode_state(state: LimitState) -> dict[str, Any]:
    """Return a limit and its use as values of JSON.

    Args:
        state: The limit.

    Returns:
        The values in force beside the name, and those of the app as `app`.
    """
    return {
        "name": state.name,
        "kind": state.kind,
        **encode_limit(state.limit),
        "app": encode_limit(state.defined),
        "set_by": state.set_by,
        "set_at": state.set_at,
        "used_slots": state.used_slots if isinstance(state.limit, ConcurrencyLimit) else None,
        "seconds_until_next": state.seconds_until_next,
        "is_wanted": state.is_wanted,
    }


def encode_limit(limit: Limit) -> dict[str, Any]:
    """Return the values of a limit as values of JSON.

    Args:
        limit: The limit.

    Returns:
        Its slots, or its starts, period and burst.
    """
    if isinstance(limit, ConcurrencyLimit):
        return {"slots": limit.slots}
    seconds = (limit.per // MICROSECOND) / 1e6
    return {"starts": limit.starts, "per_seconds": seconds, "burst": limit.burst}


def _format_next(state: LimitState) -> str:
    return f"next in {format_seconds(state.seconds_until_next or 0.0)}"
