"""Log records as text and as JSON, on a terminal and in a file."""

import io
import json
import logging
import os
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from graphile_worker._cli.error_output import print_error
from graphile_worker._cli.log_format import (
    CONTINUATION_PREFIX,
    JsonFormatter,
    TextFormatter,
    configure_logging,
    restore_logging,
)
from graphile_worker._support.logs import Logger
from graphile_worker._worker.reporting import build_job_logger
from graphile_worker.errors import ConfigurationError, CrontabError, CrontabProblem
from tests.support.hostile import TEXT, unsafe
from tests.support.jobs import make_job

LOGGER_NAME = "graphile_worker"


def make_record(**values: Any) -> logging.LogRecord:
    defaults = {
        "name": LOGGER_NAME,
        "levelno": logging.INFO,
        "levelname": "INFO",
        "msg": "hello %s",
        "args": ("there",),
    }
    return logging.makeLogRecord({**defaults, **values})


def make_exc_info(text: str = "boom") -> dict[str, Any]:
    try:
        raise LookupError(text)
    except LookupError:
        return {"exc_info": sys.exc_info()}


def format_text(**values: Any) -> str:
    return TextFormatter(use_color=False).format(make_record(**values))


def format_fields(**values: Any) -> dict[str, Any]:
    line = JsonFormatter().format(make_record(**values))
    assert "\n" not in line
    fields: dict[str, Any] = json.loads(line)
    return fields


# Text


@pytest.mark.feature("F142")
def test_a_line_of_a_job_has_label_worker_task_job_level_and_text():
    ids = {"pool_id": "pypool-1a", "worker_id": "worker-2b"}
    line = format_text(label="job", **ids, task_identifier="resize", job_id=7)

    assert line == "[job(pypool-1a: resize{7})] INFO: hello there"


@pytest.mark.feature("F142")
@pytest.mark.parametrize(
    ("scope", "start"),
    [
        ({}, "core"),
        ({"pool_id": "p1"}, "core(p1)"),
        ({"label": "worker", "pool_id": "p1", "worker_id": "w1"}, "worker(p1)"),
        ({"label": "worker", "worker_id": "w1"}, "worker(w1)"),
        ({"label": "watch"}, "watch"),
        ({"worker_id": "w1"}, "core(w1)"),
        ({"label": "job", "job_id": 7}, "job({7})"),
        ({"label": "job", "task_identifier": "resize"}, "job(resize)"),
        ({"name": f"{LOGGER_NAME}.hooks"}, "core"),
        ({"name": "shop.jobs"}, "shop.jobs"),
        ({"name": "graphile_workers"}, "graphile_workers"),
    ],
)
def test_unknown_parts_of_the_scope_are_omitted(scope, start):
    assert format_text(**scope) == f"[{start}] INFO: hello there"


def test_a_line_whose_arguments_do_not_fit_is_still_logged():
    values = {"msg": "%d pictures", "args": ("many",)}

    assert format_text(**values) == "[core] INFO: %d pictures ('many',)"
    assert format_fields(**values)["message"] == "%d pictures ('many',)"


@pytest.mark.parametrize(
    "scope", [{"pool_id": 4}, {"worker_id": 3}, {"job_id": None}, {"label": 5}]
)
def test_a_record_of_another_library_can_have_any_value_under_these_names(scope):
    assert format_text(name="shop", **scope).endswith("INFO: hello there")


@pytest.mark.parametrize(
    ("name", "color"),
    [
        ("DEBUG", 36),
        ("INFO", 32),
        ("WARNING", 33),
        ("ERROR", 31),
        ("CRITICAL", 31),
        ("Level 25", 0),
    ],
)
def test_each_level_has_its_name_and_its_color(name, color):
    line = make_record(levelname=name)

    assert TextFormatter(use_color=False).format(line) == f"[core] {name}: hello there"
    assert (
        TextFormatter(use_color=True).format(line)
        == f"[core] \x1b[{color}m{name}\x1b[0m: hello there"
    )


def test_the_lines_of_a_traceback_start_with_a_marker():
    first, *rest = format_text(**make_exc_info()).split("\n")

    assert first == "[core] INFO: hello there"
    assert all(line.startswith(CONTINUATION_PREFIX) for line in rest)
    assert rest[0] == "  | Traceback (most recent call last):"
    assert rest[-1] == "  | LookupError: boom"


def test_further_lines_of_a_message_start_with_a_marker():
    line = format_text(msg="one\ntwo\n\nfour", args=None)

    assert line.split("\n") == ["[core] INFO: one", "  | two", "  | ", "  | four"]


HOSTILE_VALUES: list[dict[str, Any]] = [
    {"args": (TEXT,)},
    {"msg": TEXT, "args": None},
    {"name": TEXT},
    {"label": TEXT},
    {"pool_id": TEXT},
    {"worker_id": TEXT},
    {"task_identifier": TEXT},
    {"job_id": TEXT},
    {"field": TEXT},
    {"stack_info": TEXT},
    make_exc_info(TEXT),
]


def test_control_characters_of_every_part_are_made_printable():
    for values in HOSTILE_VALUES:
        for formatter in (TextFormatter(use_color=False), JsonFormatter()):
            assert unsafe(formatter.format(make_record(**values))) == [], values.keys()


@pytest.mark.parametrize("formatter", [TextFormatter(use_color=False), JsonFormatter()])
def test_a_long_traceback_is_truncated(formatter):
    line = formatter.format(make_record(**make_exc_info("x" * 1_000_000)))

    assert "LookupError: xxx" in line
    assert len(line) < 20_000


# JSON


@pytest.mark.feature("F132")
def test_a_json_line_has_time_level_logger_and_message():
    line = format_fields()

    assert datetime.fromisoformat(line.pop("time")).utcoffset() is not None
    assert line == {
        "level": "info",
        "logger": LOGGER_NAME,
        "pid": os.getpid(),
        "message": "hello there",
    }


@pytest.mark.feature("F132", "F136")
def test_a_json_line_has_the_ids_and_the_extra_fields():
    ids = {"pool_id": "p1", "worker_id": "w1", "job_id": 7}
    values = {"label": "job", **ids, "task_identifier": "resize", "attempt": 1}

    line = format_fields(**values, duration_ms=1.5, tags=["a", "b"])

    assert values.items() <= line.items()
    assert (line["duration_ms"], line["tags"]) == (1.5, ["a", "b"])


def test_a_json_line_has_the_traceback_in_one_field():
    assert format_fields(**make_exc_info())["exception"].endswith("LookupError: boom")


def test_a_message_with_a_line_break_is_one_json_line():
    assert format_fields(msg="one\ntwo\u2028three", args=None)["message"] == "one\ntwo\u2028three"


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, b"bytes", {("a", "b"): 1}, float("nan")],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_json_does_not_support_becomes_text(value):
    # JSON parsers of other languages reject NaN.
    line = json.loads(JsonFormatter().format(make_record(value=value)), parse_constant=pytest.fail)

    assert line["message"] == "hello there"
    assert "value" in line


@pytest.mark.parametrize("name", ["time", "level", "logger"])
def test_extra_fields_do_not_replace_standard_fields(name):
    defaults = format_fields()

    line = format_fields(**{name: "mine"})

    assert line[name] != "mine"
    assert defaults.keys() <= line.keys()


# Configuration of the log


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def _restore_logging(monkeypatch) -> Iterator[None]:
    """Restore the handlers and levels of the log after a test."""
    root, asyncio_logger = logging.getLogger(), logging.getLogger("asyncio")
    handlers, levels = root.handlers[:], (root.level, asyncio_logger.level)
    for name in ("NO_COLOR", "GRAPHILE_LOGGER_DEBUG", "GRAPHILE_WORKER_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    asyncio_logger.setLevel(levels[1])


@pytest.fixture
def capture_log(monkeypatch, _restore_logging):
    """Configure the log, write lines of several loggers and levels, and return the output."""

    def capture(output: io.StringIO, style: str = "text") -> list[str]:
        monkeypatch.setattr(sys, "stderr", output)
        configure_logging(style)
        logger = build_job_logger(Logger(logging.getLogger(LOGGER_NAME)), "p1", make_job(id=7))
        logger.debug("details")
        logger.info("hello")
        logging.getLogger("asyncio").info("chatter")
        logging.getLogger("shop").warning("sold out")
        return output.getvalue().splitlines()

    return capture


@pytest.mark.feature("F132", "F142")
def test_the_log_of_the_whole_program_goes_to_standard_error(capture_log):
    assert capture_log(io.StringIO()) == [
        "[job(p1: resize{7})] INFO: hello",
        "[shop] WARNING: sold out",
    ]


@pytest.mark.feature("F132")
def test_a_terminal_shows_levels_in_color(capture_log):
    assert capture_log(Terminal()) == [
        "[job(p1: resize{7})] \x1b[32mINFO\x1b[0m: hello",
        "[shop] \x1b[33mWARNING\x1b[0m: sold out",
    ]


def test_no_color_turns_colors_off(capture_log, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")

    assert "\x1b" not in "".join(capture_log(Terminal()))


@pytest.mark.feature("F132")
def test_json_lines_have_no_colors(capture_log):
    hello, sold_out = map(json.loads, capture_log(Terminal(), "json"))

    assert (hello["message"], hello["level"], hello["job_id"]) == ("hello", "info", 7)
    assert (sold_out["logger"], sold_out["level"]) == ("shop", "warning")


@pytest.mark.feature("F133")
@pytest.mark.parametrize("name", ["GRAPHILE_LOGGER_DEBUG", "GRAPHILE_WORKER_DEBUG"])
def test_debug_lines_are_shown_on_request(capture_log, monkeypatch, name):
    monkeypatch.setenv(name, "1")

    lines = capture_log(io.StringIO())

    assert lines[0] == "[job(p1: resize{7})] DEBUG: details"
    assert len(lines) == 3


# Beside the logging configuration of an app


@pytest.fixture
def shop_logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("shop")
    yield logger
    for handler in logger.handlers:
        handler.close()
    logger.handlers.clear()


def test_a_line_that_a_handler_below_the_root_prints_is_printed_once(
    capture_log, shop_logger, monkeypatch
):
    output = io.StringIO()
    monkeypatch.setattr(sys, "stderr", output)
    shop_logger.addHandler(logging.StreamHandler())
    logging.getLogger("shop.orders").addHandler(logging.NullHandler())

    lines = capture_log(output)
    logging.getLogger("shop.orders").warning("unpaid")

    assert output.getvalue().splitlines() == [lines[0], "sold out", "unpaid"]


def test_a_handler_that_does_not_print_a_line_does_not_hide_it(
    capture_log, shop_logger, monkeypatch, tmp_path
):
    output = io.StringIO()
    monkeypatch.setattr(sys, "stderr", output)
    strict, deaf = logging.StreamHandler(output), logging.StreamHandler(output)
    strict.setLevel(logging.ERROR)
    deaf.addFilter(lambda record: False)
    for handler in (
        strict,
        deaf,
        logging.StreamHandler(io.StringIO()),
        logging.FileHandler(tmp_path / "log", delay=True),
        logging.NullHandler(),
    ):
        shop_logger.addHandler(handler)

    assert capture_log(output)[1:] == ["[shop] WARNING: sold out"]


def test_loggers_of_the_package_that_an_app_disabled_are_enabled_again(shop_logger):
    names = [LOGGER_NAME, f"{LOGGER_NAME}.part", f"{LOGGER_NAME}_plugin", "shop"]
    loggers = [logging.getLogger(name) for name in names]
    for logger in loggers:
        logger.disabled = True

    restore_logging(warns_about_format=False)

    assert [logger.disabled for logger in loggers] == [False, False, True, True]
    for logger in loggers:
        logger.disabled = False


def test_a_format_without_effect_is_one_warning(capture_log, caplog):
    for has_root, is_chosen, count in (
        (False, True, 0),
        (True, False, 0),
        (True, True, 1),
    ):
        capture_log(io.StringIO())
        if has_root:
            logging.root.handlers[:] = [caplog.handler]
        caplog.clear()
        restore_logging(warns_about_format=is_chosen)
        assert len(caplog.records) == count, (has_root, is_chosen)

    assert caplog.messages == [
        "--log-format has no effect: the app configures the handlers of the root logger"
    ]


def test_an_error_that_ends_the_command_is_one_printable_line(capsys):
    problem = CrontabProblem(1, 1, TEXT, TEXT)

    for error in (ConfigurationError(TEXT), CrontabError([problem], source=TEXT)):
        print_error(error)

        output = capsys.readouterr().err
        assert unsafe(output) == []
        assert output.count("\n") == 1
