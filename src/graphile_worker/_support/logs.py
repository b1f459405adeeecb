"""Logger: log lines with a scope.

By default lines go to the logger `graphile_worker` of the standard library, whose handlers your
program configures. `Logger(log_factory)` sends them elsewhere, as in Graphile Worker for Node: the
factory takes a scope and returns a function of level, message and meta.
"""

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

Scope = Mapping[str, Any]
LogFunction = Callable[[str, str, Mapping[str, Any]], object]
LogFactory = Callable[[Scope], LogFunction]

# A function of level, template, arguments and meta.
LogWriter = Callable[[str, str, tuple[object, ...], Mapping[str, Any]], None]

LEVELS = MappingProxyType(
    {
        "error": logging.ERROR,
        "warning": logging.WARNING,
        "info": logging.INFO,
        "debug": logging.DEBUG,
    }
)

# Attributes of log records, which `extra` cannot set.
_RESERVED_NAMES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class Logger:
    """Write log lines with a scope: the core, a worker or a job.

    Args:
        log_factory: A logger of the standard library, or a function that takes a scope and returns
            a function of level, message and meta.
        scope: Values that each line carries.

    Attributes:
        warn: Another name of `warning`.
    """

    def __init__(
        self, log_factory: LogFactory | logging.Logger, scope: Scope = MappingProxyType({})
    ) -> None:
        self._factory = log_factory
        self._scope = scope
        if isinstance(log_factory, logging.Logger):
            self._write = _build_record_writer(log_factory, scope)
        else:
            self._write = _build_text_writer(log_factory(scope))

    def scope(self, **more: Any) -> "Logger":
        """Return a logger with additional values in its scope.

        Args:
            more: The values to add.

        Returns:
            A new logger.
        """
        return Logger(self._factory, {**self._scope, **more})

    def error(self, message: str, /, *args: object, **meta: Any) -> None:
        """Log an error.

        Args:
            message: Text, with `%s` for each argument.
            args: Arguments of the text.
            meta: Values that the line carries.
        """
        self._write("error", message, args, meta)

    def warning(self, message: str, /, *args: object, **meta: Any) -> None:
        """Log a warning. See `error`."""
        self._write("warning", message, args, meta)

    warn = warning

    def info(self, message: str, /, *args: object, **meta: Any) -> None:
        """Log information. See `error`."""
        self._write("info", message, args, meta)

    def debug(self, message: str, /, *args: object, **meta: Any) -> None:
        """Log a detail for debugging. See `error`."""
        self._write("debug", message, args, meta)

    def exception(self, message: str, /, *args: object, **meta: Any) -> None:
        """Log an error with the traceback of the current exception. See `error`."""
        self.error(message, *args, **{"exc_info": True, **meta})


def resolve_logger(logger: "Logger | logging.Logger | None") -> Logger:
    """Return the logger of a program, or the default logger."""
    if isinstance(logger, Logger):
        return logger
    return Logger(logger or logging.getLogger("graphile_worker"))


def is_level_enabled(logger: Logger, level: str) -> bool:
    """Return whether lines of this level are written. Check it before collecting values per job."""
    factory = logger._factory
    return not isinstance(factory, logging.Logger) or factory.isEnabledFor(LEVELS[level])


def _build_record_writer(logger: logging.Logger, scope: Scope) -> LogWriter:
    """Write lines as unformatted log records, with scope and meta as `extra`."""

    def write(level: str, template: str, args: tuple[object, ...], meta: Mapping[str, Any]) -> None:
        number = LEVELS[level]
        if not logger.isEnabledFor(number):
            return
        values = {**scope, **meta}
        exc_info = values.pop("exc_info", None)
        extra = {f"{name}_" if name in _RESERVED_NAMES else name: values[name] for name in values}
        logger.log(number, template, *args, exc_info=exc_info, extra=extra)

    return write


def _build_text_writer(log: LogFunction) -> LogWriter:
    def write(level: str, template: str, args: tuple[object, ...], meta: Mapping[str, Any]) -> None:
        log(level, _format_message(template, args), meta)

    return write


def _format_message(message: str, args: tuple[object, ...]) -> str:
    if not args:
        return message
    try:
        return message % args
    except (TypeError, ValueError, KeyError):
        # An invalid log line must not raise an error.
        return f"{message} {args!r}"
