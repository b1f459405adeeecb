"""How log lines look: readable on a terminal, or one JSON object each."""

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any

from graphile_worker._support.error_format import make_printable, truncate

LEVEL_COLORS = {"ERROR": "31", "CRITICAL": "31", "WARNING": "33", "INFO": "32", "DEBUG": "36"}

# Begins each further line of a record, so that no text can pass for a record.
CONTINUATION_PREFIX = "  | "

# What every record has; whatever else it carries was given with the line.
_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def configure_logging(log_format: str) -> None:
    """Send the log of the whole program to standard error: debug lines only if asked for."""
    handler = logging.StreamHandler(sys.stderr)
    coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    handler.setFormatter(
        JsonFormatter() if log_format == "json" else TextFormatter(use_color=coloured)
    )
    root = logging.getLogger()
    root.addHandler(handler)
    debug = os.environ.get("GRAPHILE_LOGGER_DEBUG") or os.environ.get("GRAPHILE_WORKER_DEBUG")
    root.setLevel(logging.DEBUG if debug else logging.INFO)
    # The chatter of others is not ours to show.
    logging.getLogger("asyncio").setLevel(logging.WARNING)


class TextFormatter(logging.Formatter):
    """`[label(worker: task{job})] LEVEL: text`, as in the reference, made printable.

    Further lines of a text, and a traceback, stand behind a marker.
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
    """One JSON object per line, with the ids and whatever else was given beside the message."""

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
        beside = {
            name: value for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES
        }
        return _dump_json({**line, **beside, **line})


def _format_message(record: logging.LogRecord) -> str:
    """The text; a template that does not fit its arguments does not cost the line."""
    try:
        return record.getMessage()
    except Exception:
        return f"{record.msg} {record.args!r}"


def _dump_json(line: dict[str, Any]) -> str:
    """The line, whatever it carries: what JSON does not know becomes text."""
    try:
        return json.dumps(line, default=repr, allow_nan=False)
    except (TypeError, ValueError):
        return json.dumps({name: _to_json_value(value) for name, value in line.items()})


def _to_json_value(value: Any) -> Any:
    return value if isinstance(value, str | int | None) else repr(value)


def _format_scope(record: logging.LogRecord) -> str:
    """Who speaks: `job(pypool-1a2b: hello{7})`, `core(pypool-1a2b)`, `core`, another logger.

    The worker is the pool, by the id that `workers list` shows.
    """
    ours = record.name.split(".")[0] == "graphile_worker"
    label = getattr(record, "label", None) or ("core" if ours else record.name)
    worker = getattr(record, "pool_id", "") or getattr(record, "worker_id", "")
    task = getattr(record, "task_identifier", "")
    job = f"{{{record.job_id}}}" if hasattr(record, "job_id") else ""
    inside = ": ".join(part for part in (f"{worker}", f"{task}{job}") if part)
    return f"{label}({inside})" if inside else f"{label}"
