"""Logger: says things about a scope, wherever a program wants them said.

By default lines go to the standard library's logger `graphile_worker`, whose handlers are the
program's affair. `Logger(log_factory)` sends them anywhere else, as in the reference: the factory
is given a scope and returns a function of level, message and meta.
"""

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from graphile_worker._support.error_format import make_printable as make_printable

Scope = Mapping[str, Any]
LogFunction = Callable[[str, str, Mapping[str, Any]], object]
LogFactory = Callable[[Scope], LogFunction]

# Level, template, its arguments, and meta.
LogWriter = Callable[[str, str, tuple[object, ...], Mapping[str, Any]], None]

LEVELS = MappingProxyType(
    {
        "error": logging.ERROR,
        "warning": logging.WARNING,
        "info": logging.INFO,
        "debug": logging.DEBUG,
    }
)

# Names that log records have for themselves.
_RESERVED_NAMES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class Logger:
    """Says things about one scope: the core, a worker, a job."""

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
        """A logger that says these things too, besides what this one says."""
        return Logger(self._factory, {**self._scope, **more})

    def error(self, message: str, /, *args: object, **meta: Any) -> None:
        self._write("error", message, args, meta)

    def warning(self, message: str, /, *args: object, **meta: Any) -> None:
        self._write("warning", message, args, meta)

    warn = warning

    def info(self, message: str, /, *args: object, **meta: Any) -> None:
        self._write("info", message, args, meta)

    def debug(self, message: str, /, *args: object, **meta: Any) -> None:
        self._write("debug", message, args, meta)

    def exception(self, message: str, /, *args: object, **meta: Any) -> None:
        """An error with the traceback of the exception that is being handled."""
        self.error(message, *args, **{"exc_info": True, **meta})


def resolve_logger(logger: "Logger | logging.Logger | None") -> Logger:
    """What a program gave as its logger, or the library's own."""
    if isinstance(logger, Logger):
        return logger
    return Logger(logger or logging.getLogger("graphile_worker"))


def is_level_enabled(logger: Logger, level: str) -> bool:
    """Would a line of this level be written? Ask before you gather what it says for every job."""
    factory = logger._factory
    return not isinstance(factory, logging.Logger) or factory.isEnabledFor(LEVELS[level])


def _build_record_writer(logger: logging.Logger, scope: Scope) -> LogWriter:
    """Lines as records of the standard library, not formatted, with scope and meta as `extra`."""

    def write(level: str, template: str, args: tuple[object, ...], meta: Mapping[str, Any]) -> None:
        number = LEVELS[level]
        if not logger.isEnabledFor(number):
            return
        given = {**scope, **meta}
        shown = given.pop("exc_info", None)
        extra = {f"{name}_" if name in _RESERVED_NAMES else name: given[name] for name in given}
        logger.log(number, template, *args, exc_info=shown, extra=extra)

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
        # A log line is no reason to fail.
        return f"{message} {args!r}"
