"""Logger: says things about a scope, wherever a program wants them said.

By default lines go to the standard library's logger `graphile_worker`, whose handlers are the
program's affair. `Logger(log_factory)` sends them anywhere else, as in the reference: the factory
is given a scope and returns a function of level, message and meta.
"""

import logging
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

Scope = Mapping[str, Any]
LogFunction = Callable[[str, str, Mapping[str, Any]], object]
LogFactory = Callable[[Scope], LogFunction]

LEVELS = MappingProxyType(
    {
        "error": logging.ERROR,
        "warning": logging.WARNING,
        "info": logging.INFO,
        "debug": logging.DEBUG,
    }
)

# What moves a cursor, sets colours, ends a line or turns the direction of writing: with these, what
# others say could pass for lines of ours. A tab is fine.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)

# Names that log records have for themselves.
_RESERVED = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def standard(logger: logging.Logger) -> LogFactory:
    """Lines as records of a logger of the standard library, scope and meta as their `extra`."""

    def factory(scope: Scope) -> LogFunction:
        def log(level: str, message: str, meta: Mapping[str, Any]) -> None:
            number = LEVELS[level]
            if not logger.isEnabledFor(number):
                return
            given = {**scope, **meta}
            shown = given.pop("exc_info", None)
            extra = {f"{name}_" if name in _RESERVED else name: given[name] for name in given}
            logger.log(number, "%s", message, exc_info=shown, extra=extra)

        return log

    return factory


class Logger:
    """Says things about one scope: the core, a worker, a job."""

    def __init__(
        self, log_factory: LogFactory | logging.Logger, scope: Scope = MappingProxyType({})
    ) -> None:
        if isinstance(log_factory, logging.Logger):
            log_factory = standard(log_factory)
        self._factory = log_factory
        self._scope = scope
        self._log = log_factory(scope)

    def scope(self, **more: Any) -> "Logger":
        """A logger that says these things too, besides what this one says."""
        return Logger(self._factory, {**self._scope, **more})

    def error(self, message: str, /, *args: object, **meta: Any) -> None:
        self._log("error", _text(message, args), meta)

    def warning(self, message: str, /, *args: object, **meta: Any) -> None:
        self._log("warning", _text(message, args), meta)

    warn = warning

    def info(self, message: str, /, *args: object, **meta: Any) -> None:
        self._log("info", _text(message, args), meta)

    def debug(self, message: str, /, *args: object, **meta: Any) -> None:
        self._log("debug", _text(message, args), meta)

    def exception(self, message: str, /, *args: object, **meta: Any) -> None:
        """An error with the traceback of the exception that is being handled."""
        self.error(message, *args, **{"exc_info": True, **meta})


def logger_of(given: "Logger | logging.Logger | None") -> Logger:
    """What a program gave as its logger, or the library's own."""
    if isinstance(given, Logger):
        return given
    return Logger(given or logging.getLogger("graphile_worker"))


def job_logger(core: Logger, worker_id: str, task_identifier: str, job_id: int) -> Logger:
    """A logger whose lines carry the ids of a job."""
    return core.scope(
        label="job", worker_id=worker_id, task_identifier=task_identifier, job_id=job_id
    )


def printable(text: object) -> str:
    """A text of others as one harmless line: what only terminals understand becomes an escape."""
    return _UNPRINTABLE.sub(lambda it: it[0].encode("unicode_escape").decode(), str(text))


def _text(message: str, args: tuple[object, ...]) -> str:
    if not args:
        return message
    try:
        return message % args
    except (TypeError, ValueError, KeyError):
        # A log line is no reason to fail.
        return f"{message} {args!r}"
