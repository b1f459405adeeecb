"""Old names of settings and flags, which are rejected with the new name in the message."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from graphile_worker.errors import ConfigurationError

T = TypeVar("T")

# As in a config file. Flags and environment variables follow.
RENAMED_SETTINGS = {
    "abort_after": "cancel_after",
    "stop_after": "shutdown_timeout",
    "blocked_after": "warn_blocked_after",
    "recovery.threshold": "recovery.lease_duration",
    "recovery.interval": "recovery.heartbeat_interval",
    "recovery.sweep_interval": "recovery.rescue_interval",
    "recovery.recovery_delay": "recovery.crash_retry_delay",
    "recovery.max_recoveries": "recovery.max_crashes",
}

# Flags of subcommands.
RENAMED_FLAGS = {
    "--rest": "--throttle",
    "--held-for": "--max-transaction-age",
    "--dead": "--all-dead",
}


def rejects_renamed(group: str = "") -> Callable[[type[T]], type[T]]:
    """Make a class of options raise ConfigurationError for an old name of one of its fields."""

    def decorate(options: type[T]) -> type[T]:
        original: Callable[..., None] = options.__init__

        @wraps(original)
        def __init__(self: T, /, *args: Any, **given: Any) -> None:
            for name in given:
                if new := RENAMED_SETTINGS.get(group + name):
                    raise ConfigurationError(
                        f"{options.__name__}: {name} is now called {new.removeprefix(group)}"
                    )
            original(self, *args, **given)

        options.__init__ = __init__  # type: ignore[assignment, method-assign]
        return options

    return decorate
