"""Format log records as text or as JSON."""

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

from graphile_worker._support.error_format import make_printable, truncate

LEVEL_COLORS = {"ERROR": "31", "CRITICAL": "31", "WARNING": "33", "INFO": "32", "DEBUG": "36"}

LOGGER_NAME = "graphile_worker"

# Starts each further line of a record, so that no text can imitate a record.
CONTINUATION_PREFIX = "  | "

# Attributes of every record. Others were passed as `extra`.
_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def configure_logging(log_format: str) -> None:
    """Send the log of the whole program to standard error."""
    handler = RootHandler(sys.stderr)
    use_color = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    handler.setFormatter(
        JsonFormatter() if log_format == "json" else TextFormatter(use_color=use_color)
    )
    root = logging.getLogger()
    root.addHandler(handler)
    debug = os.environ.get("GRAPHILE_LOGGER_DEBUG") or os.environ.get("GRAPHILE_WORKER_DEBUG")
    root.setLevel(logging.DEBUG if debug else logging.INFO)
    # Debug lines of asyncio do not concern a user of the command.
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def restore_logging(*, warns_about_format: bool) -> None:
    """Undo what the logging configuration of an app does to the lines of the worker.

    `logging.config.dictConfig` disables all loggers that exist and that it does not name, unless
    the configuration turns that off. A configuration of the root logger replaces the handler of the
    command. That is right, but a log format that the user chose then has no effect.
    """
    for name, each in list(logging.root.manager.loggerDict.items()):
        if name.partition(".")[0] == LOGGER_NAME and isinstance(each, logging.Logger):
            each.disabled = False
    if warns_about_format and not any(isinstance(h, RootHandler) for h in logging.root.handlers):
        logging.getLogger(LOGGER_NAME).warning(
            "--log-format has no effect: the app configures the handlers of the root logger"
        )


class RootHandler(logging.StreamHandler[TextIO]):
    """Writes the records that no other handler has written to the terminal.

    The configuration of an app may have a handler at a logger below the root, as that of Django.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.addFilter(lambda record: not _is_written_below_root(record))


def _is_written_below_root(record: logging.LogRecord) -> bool:
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None and logger is not logging.root:
        if any(_writes_to_terminal(handler, record) for handler in logger.handlers):
            return True
        logger = logger.parent
    return False


def _writes_to_terminal(handler: logging.Handler, record: logging.LogRecord) -> bool:
    return (
        isinstance(handler, logging.StreamHandler)
        and handler.stream in (sys.stderr, sys.stdout)
        and record.levelno >= handler.level
        and bool(handler.filter(record))
    )


class TextFormatter(logging.Formatter):
    """Formats a record as `[label(worker: task{job})] LEVEL: text`.

    Graphile Worker for Node writes the same format. Further lines of a message, and a traceback,
    start with a marker.
    """

    def __init__(self, *, use_color: bool) -> None:
        super().__init__()
        self._use_color = use_color

    def format(self, record: logging.LogRecord) -> str:
        level = self._format_level(record.levelname)
        message, *more = _format_message(record).split("\n")
        first = f"[{make_printable(_format_scope(record))}] {level}: {make_printable(message)}"
        if record.exc_info:
            more += truncate(self.formatException(record.exc_info)).split("\n")
        if record.stack_info:
            more += truncate(record.stack_info).split("\n")
        return "\n".join(
            [first, *(f"{CONTINUATION_PREFIX}{make_printable(line)}" for line in more)]
        )

    def _format_level(self, name: str) -> str:
        if not self._use_color:
            return name
        return f"\x1b[{LEVEL_COLORS.get(name, '0')}m{name}\x1b[0m"


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON, with the ids and other values of `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": _format_message(record),
        }
        if record.exc_info:
            line["exception"] = truncate(self.formatException(record.exc_info))
        extra = {
            name: value for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES
        }
        # The standard fields come first, and `extra` does not override them.
        return _dump_json({**line, **extra, **line})


def _format_message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:
        # The template does not fit its arguments.
        return f"{record.msg} {record.args!r}"


def _dump_json(line: dict[str, Any]) -> str:
    try:
        return json.dumps(line, default=repr, allow_nan=False)
    except (TypeError, ValueError):
        # A value that JSON does not support becomes text.
        return json.dumps(
            {
                name: value if isinstance(value, str | int | None) else repr(value)
                for name, value in line.items()
            }
        )


def _format_scope(record: logging.LogRecord) -> str:
    """Format the scope, for example `job(pypool-1a2b: hello{7})`, `core(pypool-1a2b)` or `core`.

    The worker is the id of its pool, which `workers list` shows.
    """
    is_own = record.name.split(".")[0] == "graphile_worker"
    label = getattr(record, "label", None) or ("core" if is_own else record.name)
    worker = getattr(record, "pool_id", "") or getattr(record, "worker_id", "")
    task = getattr(record, "task_identifier", "")
    job = f"{{{record.job_id}}}" if hasattr(record, "job_id") else ""
    inside = ": ".join(part for part in (f"{worker}", f"{task}{job}") if part)
    return f"{label}({inside})" if inside else f"{label}"
