"""Old names of settings and flags, which are rejected with the new name in the message."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from graphile_worker.errors import ConfigurationError

T = TypeVar("T")

# Keys of a config file. The old flags and environment variables follow from them.
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
    """Make an option class raise ConfigurationError for the old name of a field."""

    def decorate(options: type[T]) -> type[T]:
        original: Callable[..., None] = options.__init__

        @wraps(original)
        def __init__(self: T, /, *args: Any, **options_by_name: Any) -> None:
            for name in options_by_name:
                if new := RENAMED_SETTINGS.get(group + name):
                    raise ConfigurationError(
                        f"{options.__name__}: {name} is now called {new.removeprefix(group)}"
                    )
            original(self, *args, **options_by_name)

        options.__init__ = __init__  # type: ignore[assignment, method-assign]
        return options

    return decorate
