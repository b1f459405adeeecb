"""The crontab file: what each line means, and what is said about those that mean nothing."""

import json
import pickle
from datetime import timedelta
from typing import Any

import pytest

from graphile_worker import (
    CronItem,
    CrontabError,
    ParsedCronItem,
    parse_cron_items,
    parse_crontab,
)
from graphile_worker.crontab.lines import MAX_JSON5_CHARS
from graphile_worker.crontab.patterns import CronPattern
from graphile_worker.errors import CrontabProblem

SECRET = "hunter2"
EVERY_MINUTE = "* * * * *"
KILOBYTE = 1024

MINUTES = frozenset(range(60))
HOURS = frozenset(range(24))
DATES = frozenset(range(1, 32))
MONTHS = frozenset(range(1, 13))
DOWS = frozenset(range(7))

FIELDS = ["minute", "hour", "date", "month", "dow"]
ALL = dict(zip(FIELDS, (MINUTES, HOURS, DATES, MONTHS, DOWS), strict=True))


def one(line: str) -> ParsedCronItem:
    [item] = parse_crontab(line)
    return item


def of_task(rest: str) -> ParsedCronItem:
    """The item of a line after its five fields."""
    return one(f"{EVERY_MINUTE} {rest}")


def pattern(line: str) -> CronPattern:
    match = one(f"{line} task").match
    assert isinstance(match, CronPattern)
    return match


def field(name: str, text: str) -> frozenset[int]:
    """What one field means, where all others are `*`."""
    found = pattern(" ".join(text if each == name else "*" for each in FIELDS))
    values = (found.minutes, found.hours, found.dates, found.months, found.dows)
    return dict(zip(FIELDS, values, strict=True))[name]


def refused(text: str) -> CrontabError:
    with pytest.raises(CrontabError) as caught:
        parse_crontab(text)
    return caught.value


def problem(text: str) -> CrontabProblem:
    [only] = refused(text).problems
    return only


def places(text: str) -> list[tuple[int, int, str]]:
    return [(each.line, each.column, each.text) for each in refused(text).problems]


# Lines


@pytest.mark.feature("F247", "F285")
def test_a_line_is_five_fields_a_task_options_and_a_payload():
    item = one("1 2 3 4 5 send_mail ?id=early&max=3 {to: 'ada'}")

    assert item.match == CronPattern(*(frozenset({each}) for each in (1, 2, 3, 4, 5)))
    assert (item.task, item.identifier) == ("send_mail", "early")
    assert (item.spec.max_attempts, item.payload) == (3, {"to": "ada"})


@pytest.mark.feature("F247")
def test_options_and_payload_may_be_left_out():
    item = one("* * * * * task")

    assert (item.identifier, item.payload, item.backfill) == ("task", {}, timedelta(0))
    spec = item.spec
    assert (spec.queue_name, spec.max_attempts, spec.priority) == (None, None, None)
    assert (spec.job_key, spec.job_key_mode) == (None, None)


@pytest.mark.feature("F247")
def test_a_payload_needs_no_options():
    assert of_task("task {a: 1}").payload == {"a": 1}


@pytest.mark.feature("F285")
def test_items_come_in_the_order_of_their_lines():
    items = parse_crontab("* * * * * c\n* * * * * a\n* * * * * b\n")

    assert [item.task for item in items] == ["c", "a", "b"]


@pytest.mark.feature("F285")
@pytest.mark.parametrize("text", ["", "\n", "\r\n", "   \n\t\n", "# only words\n  # and more\n"])
def test_a_crontab_may_be_empty(text):
    assert parse_crontab(text) == []


@pytest.mark.feature("F250")
@pytest.mark.parametrize(
    "line", ["# a comment", "#", "#* * * * * task", "   # further in", "\t# tab", "", "   ", "\t"]
)
def test_comments_and_blank_lines_are_skipped(line):
    assert parse_crontab(f"{line}\n* * * * * task\n{line}") == [of_task("task")]


@pytest.mark.feature("F250")
def test_a_comment_does_not_follow_a_task():
    assert places("* * * * * task # nightly") == [(1, 16, "#")]


@pytest.mark.feature("F250")
def test_comments_count_as_lines():
    assert places("# one\n\n# three\n* * * * * 4th") == [(4, 11, "4th")]


def test_lines_may_end_as_on_windows():
    text = "# first\r\n* * * * * one\r\n\r\n* * * * * two ?id=second {a: 1}\r\n"

    assert [item.identifier for item in parse_crontab(text)] == ["one", "second"]
    assert places(text + "bad\r\n") == [(5, 1, "bad")]


@pytest.mark.feature("F247")
@pytest.mark.parametrize(
    "line",
    [
        "  1 2 3 4 5 task ?id=x {a:1}",
        "1 2 3 4 5 task ?id=x {a:1}   ",
        "1\t2\t3\t4\t5\ttask\t?id=x\t{a:1}\t",
        "1   2  3 \t 4     5  task   ?id=x     {a:1}",
        "1\u00a02\u30003\v4\f5 task ?id=x {a:1}",
    ],
)
def test_any_number_of_blanks_stands_between_parts_and_around_them(line):
    assert one(line) == one("1 2 3 4 5 task ?id=x {a:1}")


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\r"])
def test_other_line_ends_are_rejected_after_the_fields(end):
    first, *_ = refused(f"* * * * * task{end}{{a: 1}}").problems

    assert (first.line, first.column) == (1, 11)
    assert "no line break" in first.expected


# Fields


@pytest.mark.feature("F251")
@pytest.mark.parametrize("name", FIELDS)
def test_a_star_means_all_values(name):
    assert field(name, "*") == ALL[name]


@pytest.mark.feature("F248", "F251")
@pytest.mark.parametrize("name", FIELDS)
def test_a_number_means_itself_from_the_least_to_the_largest(name):
    for value in ALL[name]:
        assert field(name, str(value)) == {value}


@pytest.mark.feature("F248")
@pytest.mark.parametrize(
    ("line", "column", "text", "expected"),
    [
        ("60 * * * * task", 1, "60", "minute from 0 to 59"),
        ("* 24 * * * task", 3, "24", "hour from 0 to 23"),
        ("* * 0 * * task", 5, "0", "day of the month from 1 to 31"),
        ("* * 32 * * task", 5, "32", "day of the month from 1 to 31"),
        ("* * * 0 * task", 7, "0", "month from 1 to 12"),
        ("* * * 13 * task", 7, "13", "month from 1 to 12"),
        ("* * * * 8 task", 9, "8", "day of the week from 0 to 7"),
        ("50-60 * * * * task", 1, "50-60", "minute from 0 to 59"),
        ("* * 0-5 * * task", 5, "0-5", "day of the month from 1 to 31"),
        ("* * * * 5-8 task", 9, "5-8", "day of the week from 0 to 7"),
        (f"{'9' * 5000} * * * * task", 1, "9" * 5000, "minute from 0 to 59"),
    ],
)
def test_a_value_must_be_one_that_its_field_has(line, column, text, expected):
    found = problem(line)

    assert (found.line, found.column, found.text) == (1, column, text)
    assert found.expected.endswith(expected)


@pytest.mark.feature("F248")
@pytest.mark.parametrize(
    ("text", "days"),
    [("0", {0}), ("7", {0}), ("0,7", {0}), ("5-7", {5, 6, 0}), ("0-7", DOWS), ("6,7", {6, 0})],
)
def test_seven_is_sunday_too(text, days):
    assert field("dow", text) == days


@pytest.mark.feature("F251")
@pytest.mark.parametrize(("text", "value"), [("00", 0), ("07", 7), ("0000000000007", 7)])
def test_a_number_may_begin_with_zeros(text, value):
    assert field("minute", text) == {value}


@pytest.mark.feature("F252")
@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("minute", "*/15", {0, 15, 30, 45}),
        ("minute", "*/7", {0, 7, 14, 21, 28, 35, 42, 49, 56}),
        ("hour", "*/4", {0, 4, 8, 12, 16, 20}),
        ("date", "*/2", set(range(1, 32, 2))),
        ("date", "*/10", {1, 11, 21, 31}),
        ("month", "*/3", {1, 4, 7, 10}),
        ("month", "*/5", {1, 6, 11}),
        ("dow", "*/2", {0, 2, 4, 6}),
        ("dow", "*/7", {0}),
        ("minute", "*/1", MINUTES),
        ("minute", "*/60", {0}),
        ("date", "*/99", {1}),
        ("date", f"*/{'9' * 5000}", {1}),
    ],
)
def test_steps_begin_with_the_least_value(name, text, values):
    assert field(name, text) == values


@pytest.mark.feature("F252")
@pytest.mark.parametrize("text", ["*/0", "*/00", "*/", "*/x", "*/-1", "*/1.5", "*/2/3"])
def test_a_step_is_one_or_more(text):
    found = problem(f"{text} * * * * task")

    assert (found.column, found.text) == (1, text)
    assert found.expected == "a step of 1 or more after */"


@pytest.mark.feature("F253")
@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("minute", "0-59", MINUTES),
        ("minute", "10-12", {10, 11, 12}),
        ("hour", "9-17", set(range(9, 18))),
        ("date", "30-31", {30, 31}),
        ("month", "1-12", MONTHS),
        ("dow", "1-5", {1, 2, 3, 4, 5}),
    ],
)
def test_a_range_holds_both_its_ends(name, text, values):
    assert field(name, text) == values


@pytest.mark.feature("F253")
@pytest.mark.parametrize("text", ["5-5", "6-5", "59-0", "0-0"])
def test_a_range_must_ascend(text):
    found = problem(f"* {text} * * * task")

    assert (found.column, found.text) == (3, text)
    assert found.expected == "a range whose end is larger than its beginning"


@pytest.mark.feature("F254")
@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("minute", "1,2,3", {1, 2, 3}),
        ("minute", "3,1,3", {1, 3}),
        ("minute", "0,10-12,*/30", {0, 10, 11, 12, 30}),
        ("hour", "*,5", HOURS),
        ("dow", "1-2,7", {0, 1, 2}),
    ],
)
def test_a_list_means_what_any_of_its_parts_means(name, text, values):
    assert field(name, text) == values


@pytest.mark.feature("F254", "F255")
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("1,,2 * * * * task", [(1, 3, "")]),
        (",1 * * * * task", [(1, 1, "")]),
        ("* 1, * * * task", [(1, 5, "")]),
        ("1,60,5-5,*/0 * * * * task", [(1, 3, "60"), (1, 6, "5-5"), (1, 10, "*/0")]),
    ],
)
def test_each_wrong_part_of_a_list_is_named_with_its_own_column(line, found):
    assert places(line) == found


@pytest.mark.feature("F255")
@pytest.mark.parametrize(
    ("line", "column", "text"),
    [
        ("@daily task", 1, "@daily"),
        ("@reboot task", 1, "@reboot"),
        ("* * * JAN * task", 7, "JAN"),
        ("* * * * MON task", 9, "MON"),
        ("* * ? * * task", 5, "?"),
        ("* * L * * task", 5, "L"),
        ("0-30/5 * * * * task", 1, "0-30/5"),
        ("5/10 * * * * task", 1, "5/10"),
        ("* * 15W * * task", 5, "15W"),
        ("* * * * 5#3 task", 9, "5#3"),
        ("-1 * * * * task", 1, "-1"),
        ("1- * * * * task", 1, "1-"),
        ("1-2-3 * * * * task", 1, "1-2-3"),
        ("** * * * * task", 1, "**"),
        ("*-5 * * * * task", 1, "*-5"),
        ("+5 * * * * task", 1, "+5"),
        ("\u0661 * * * * task", 1, "\u0661"),
        ("1.5 * * * * task", 1, "1.5"),
    ],
)
def test_syntax_of_other_crons_is_rejected_with_what_was_expected(line, column, text):
    found = problem(line)

    assert (found.line, found.column, found.text) == (1, column, text)
    assert "a range a-b, * or */n" in found.expected


@pytest.mark.feature("F255")
@pytest.mark.parametrize(
    ("line", "column", "text", "expected"),
    [
        ("task", 1, "task", "minute"),
        ("*", 2, "", "hour"),
        ("* task", 3, "task", "hour"),
        ("* * * task", 7, "task", "month"),
        ("* * * * task", 9, "task", "day of the week"),
        ("* * * *", 8, "", "day of the week"),
        ("* * * * *", 10, "", "a task"),
        ("* * * * * *", 11, "*", "a task"),
    ],
)
def test_a_part_that_is_missing_is_named(line, column, text, expected):
    found = problem(line)

    assert (found.line, found.column, found.text) == (1, column, text)
    assert expected in found.expected


# Tasks


@pytest.mark.feature("F256")
@pytest.mark.parametrize(
    "name",
    ["a", "_", "send_mail", "send-mail", "users:send", "users/mail/send", "A1", "_9", "a" * 128],
)
def test_a_task_is_named_with_letters_digits_and_four_signs(name):
    assert of_task(name).task == name


@pytest.mark.feature("F256")
@pytest.mark.parametrize(
    "name", ["1st", "-a", ":a", "/a", "a.b", "a!", "é", "a@b", "a,b", "'a'", "a?id=b"]
)
def test_invalid_task_names_are_rejected(name):
    found = problem(f"{EVERY_MINUTE} {name}")

    assert (found.line, found.column, found.text) == (1, 11, name)
    assert found.expected.startswith("a task: a letter or _")


@pytest.mark.feature("F256")
def test_a_name_is_as_long_as_the_database_allows():
    found = problem(f"{EVERY_MINUTE} {'a' * 129}")

    assert (found.column, found.expected) == (11, "a task of at most 128 letters")


# Options


@pytest.mark.feature("F257")
def test_options_are_joined_by_ampersands():
    item = of_task(
        "task ?id=it&fill=1d&max=3&queue=mail&jobKey=k&jobKeyMode=preserve_run_at&priority=-5"
    )

    assert (item.identifier, item.backfill) == ("it", timedelta(days=1))
    spec = item.spec
    assert (spec.max_attempts, spec.queue_name, spec.priority) == (3, "mail", -5)
    assert (spec.job_key, spec.job_key_mode) == ("k", "preserve_run_at")


@pytest.mark.feature("F257")
@pytest.mark.parametrize("text", ["max=3&&id=a", "&max=3&id=a", "max=3&id=a&", "&&id=a&&max=3&&"])
def test_an_ampersand_too_many_does_no_harm(text):
    item = of_task(f"task ?{text}")

    assert (item.identifier, item.spec.max_attempts) == ("a", 3)


@pytest.mark.feature("F257")
@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("a+b", "a b"),
        ("a%20b", "a b"),
        ("a%2Bb", "a+b"),
        ("%26%3D%3f", "&=?"),
        ("%C3%A9", "é"),
        ("é", "é"),
        ("a=b", "a=b"),
        ("100%", "100%"),
        ("?", "?"),
    ],
)
def test_options_are_written_as_in_an_address(text, key):
    assert of_task(f"task ?jobKey={text}").spec.job_key == key


@pytest.mark.feature("F257")
def test_names_of_options_are_read_the_same_way():
    assert of_task("task ?%69d=it").identifier == "it"


@pytest.mark.feature("F257")
@pytest.mark.parametrize("key", ["x", "ID", "jobkey", "tz", "flags", "maxAttempts", "i d", ""])
def test_an_unknown_option_is_rejected_with_the_known_ones(key):
    found = problem(f"{EVERY_MINUTE} task ?max=3&{key.replace(' ', '+')}=1")

    assert (found.line, found.column, found.text) == (1, 23, key)
    assert found.expected == "one of id, fill, max, queue, jobKey, jobKeyMode, priority"


@pytest.mark.feature("F257")
@pytest.mark.parametrize(
    "pair",
    [
        "id=a",
        "fill=1d",
        "max=3",
        "queue=q",
        "jobKey=k",
        "jobKeyMode=replace",
        "priority=1",
    ],
)
def test_an_option_is_given_once(pair):
    found = problem(f"{EVERY_MINUTE} task ?{pair}&{pair}")

    key = pair.partition("=")[0]
    assert (found.line, found.column, found.text) == (1, 18 + len(pair), pair)
    assert found.expected == f"{key} only once"


@pytest.mark.feature("F257")
def test_a_wrong_option_that_is_repeated_is_wrong_twice():
    assert places(f"{EVERY_MINUTE} task ?max=x&max=3") == [(1, 17, "max=x"), (1, 23, "max=3")]


@pytest.mark.feature("F257")
def test_a_question_mark_needs_options():
    assert places("* * * * * task ?") == [(1, 16, "?")]
    assert places("* * * * * task ? id=a") == [(1, 16, "?"), (1, 18, "id=a")]


@pytest.mark.feature("F257")
def test_options_hold_no_blanks():
    assert places("* * * * * task ?id=a & max=3") == [(1, 22, "&")]


@pytest.mark.feature("F258")
@pytest.mark.parametrize("name", ["a", "_", "Weekly-report_2", "a1", "_1-"])
def test_an_identifier_is_given_by_id(name):
    item = of_task(f"task ?id={name}")

    assert (item.identifier, item.task) == (name, "task")


@pytest.mark.feature("F258")
def test_without_id_an_item_is_called_like_its_task():
    assert of_task("users/send").identifier == "users/send"


@pytest.mark.feature("F258")
def test_identifiers_are_case_sensitive():
    items = parse_crontab(f"{EVERY_MINUTE} a ?id=it\n{EVERY_MINUTE} a ?id=IT")

    assert [item.identifier for item in items] == ["it", "IT"]


@pytest.mark.feature("F260")
@pytest.mark.parametrize(("text", "attempts"), [("1", 1), ("025", 25), ("32767", 32767)])
def test_attempts_are_given_by_max(text, attempts):
    assert of_task(f"task ?max={text}").spec.max_attempts == attempts


@pytest.mark.feature("F261")
@pytest.mark.parametrize("name", ["q", "1", "-", "a_b-c:d", "Mail:2", "q" * 128])
def test_a_queue_is_given_by_queue(name):
    assert of_task(f"task ?queue={name}").spec.queue_name == name


@pytest.mark.feature("F262")
@pytest.mark.parametrize("key", ["k", "a/b.c:d", "ünï", "k" * 512])
def test_a_key_is_given_by_job_key_and_replaces(key):
    spec = of_task(f"task ?jobKey={key}").spec

    assert (spec.job_key, spec.job_key_mode) == (key, "replace")


@pytest.mark.feature("F263")
@pytest.mark.parametrize("mode", ["replace", "preserve_run_at"])
def test_what_a_key_does_is_given_by_job_key_mode(mode):
    assert of_task(f"task ?jobKeyMode={mode}&jobKey=k").spec.job_key_mode == mode


@pytest.mark.feature("F264")
@pytest.mark.parametrize(("text", "value"), [("0", 0), ("-0", 0), ("-32768", -32768), ("07", 7)])
def test_a_priority_may_be_negative(text, value):
    assert of_task(f"task ?priority={text}").spec.priority == value


@pytest.mark.feature("F258", "F259", "F260", "F261", "F262", "F263", "F264")
@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("id=", "for id a letter or _"),
        ("id", "for id a letter or _"),
        ("id=1a", "for id a letter or _"),
        ("id=-a", "for id a letter or _"),
        ("id=a:b", "for id a letter or _"),
        ("id=a/b", "for id a letter or _"),
        ("id=a%0A", "for id a letter or _"),
        ("id=é", "for id a letter or _"),
        ("fill=", "for fill numbers with s, m, h, d or w"),
        ("fill=1", "for fill numbers with s, m, h, d or w"),
        ("max=", "for max a number"),
        ("max=-1", "for max a number"),
        ("max=1.5", "for max a number"),
        ("max=1e2", "for max a number"),
        ("max=\u0663", "for max a number"),
        ("max=0", "another value for max: must be at least 1"),
        ("max=32768", "another value for max: must be from -32768 to 32767"),
        ("max=" + "9" * 5000, "for max"),
        ("queue=", "for queue letters, digits"),
        ("queue=a.b", "for queue letters, digits"),
        ("queue=a/b", "for queue letters, digits"),
        ("id=" + "i" * 2001, "for id a letter or _"),
        ("queue=" + "q" * 129, "another value for queue: at most 128 characters"),
        ("jobKey=", "another value for jobKey: must not be empty"),
        ("jobKey=a%0Ab", "for jobKey text without line breaks"),
        ("jobKey=a%00b", "another value for jobKey: PostgreSQL text cannot hold NUL"),
        ("jobKey=" + "k" * 513, "another value for jobKey: at most 512 characters"),
        ("jobKeyMode=", "for jobKeyMode replace or preserve_run_at"),
        ("jobKeyMode=unsafe_dedupe", "for jobKeyMode replace or preserve_run_at"),
        ("jobKeyMode=Replace", "for jobKeyMode replace or preserve_run_at"),
        ("priority=", "for priority a number"),
        ("priority=+1", "for priority a number"),
        ("priority=1.5", "for priority a number"),
        ("priority=--1", "for priority a number"),
        ("priority=-32769", "another value for priority: must be from -32768 to 32767"),
    ],
)
def test_an_invalid_value_is_rejected_with_what_the_option_takes(pair, expected):
    found = problem(f"{EVERY_MINUTE} task ?{pair}")

    assert (found.line, found.column, found.text) == (1, 17, pair)
    assert found.expected.startswith(expected)


# Time phrases


@pytest.mark.feature("F259", "F267")
@pytest.mark.parametrize(
    ("text", "period"),
    [
        ("4w3d2h1m", timedelta(minutes=44761)),
        ("1s", timedelta(seconds=1)),
        ("90s", timedelta(seconds=90)),
        ("1m", timedelta(minutes=1)),
        ("36h", timedelta(hours=36)),
        ("2d", timedelta(days=2)),
        ("2w", timedelta(days=14)),
        ("0m", timedelta(0)),
        ("1m1h", timedelta(minutes=61)),
        ("1h1h", timedelta(hours=2)),
        ("007d", timedelta(days=7)),
    ],
)
def test_a_period_is_the_sum_of_its_parts(text, period):
    assert of_task(f"task ?fill={text}").backfill == period


@pytest.mark.feature("F259")
def test_nothing_is_made_up_for_unless_it_is_asked_for():
    assert of_task("task").backfill == timedelta(0)


@pytest.mark.feature("F267")
@pytest.mark.parametrize(
    "text",
    [
        "d",
        "1",
        "1d2",
        "1y",
        "1D",
        "1.5d",
        "-1d",
        "1d+2h",
        "1d,2h",
        "1ms",
        "\u0661d",
        "9" * 99 + "w",
    ],
)
def test_an_invalid_period_is_rejected(text):
    found = problem(f"{EVERY_MINUTE} task ?fill={text}")

    assert found.column == 17
    assert found.expected == "for fill numbers with s, m, h, d or w, for example 2d12h"


# Payloads


@pytest.mark.feature("F268")
@pytest.mark.parametrize(
    ("text", "payload"),
    [
        ("{}", {}),
        ('{"a": 1}', {"a": 1}),
        ("{a:1}", {"a": 1}),
        ("{a: 1, 'b': 'two', \"c\": [3,],}", {"a": 1, "b": "two", "c": [3]}),
        ("{a: .5, b: +1, c: 0x10, d: -2.}", {"a": 0.5, "b": 1, "c": 16, "d": -2.0}),
        ("{a: /* why */ true, b: null}", {"a": True, "b": None}),
        ("{a: {b: {c: []}}}", {"a": {"b": {"c": []}}}),
        ("{a: 'it\\'s', é: '\\u00e9 \\x41'}", {"a": "it's", "é": "é A"}),
        ("{a: '# no comment', b: '?id=no'}", {"a": "# no comment", "b": "?id=no"}),
        ("{a: '}'}", {"a": "}"}),
        ("{_cron: 1}", {"_cron": 1}),
    ],
)
def test_a_payload_is_an_object_of_json5(text, payload):
    assert of_task(f"task {text}").payload == payload
    assert of_task(f"task ?id=it {text}   \t").payload == payload


@pytest.mark.feature("F268")
def test_a_payload_in_json5_has_at_most_4096_characters_and_one_in_json_may_be_longer():
    longest = "{a: '%s'}" % ("x" * (MAX_JSON5_CHARS - 7))
    assert len(longest) == MAX_JSON5_CHARS
    assert of_task(f"task {longest}").payload == {"a": "x" * (MAX_JSON5_CHARS - 7)}
    as_json = json.dumps({"a": ["x"] * 5 * KILOBYTE})
    assert of_task(f"task {as_json}").payload == {"a": ["x"] * 5 * KILOBYTE}

    found = problem(f"{EVERY_MINUTE} task {longest[:-2]}x'}}")

    assert (found.column, found.text) == (16, "4,097 characters of JSON5")
    assert found.expected == (
        "a payload of at most 4,096 characters in JSON5, or a longer one in JSON: quote its names, "
        "and leave out comments and trailing commas"
    )


@pytest.mark.feature("F268")
@pytest.mark.parametrize(
    ("rest", "column", "text"),
    [
        ("[1]", 16, "[1]"),
        ("1", 16, "1"),
        ("null", 16, "null"),
        ("more words", 16, "more"),
        ("?id=a more", 22, "more"),
    ],
)
def test_nothing_but_an_object_ends_a_line(rest, column, text):
    found = problem(f"{EVERY_MINUTE} task {rest}")

    assert (found.column, found.text) == (column, text)
    assert found.expected == "?options, or a payload {…} at the end of the line"


@pytest.mark.feature("F268")
@pytest.mark.parametrize(
    ("rest", "column"),
    [
        ("{a: 1", 16),
        ("{a: 1} # nightly", 16),
        ("{a: 1} ?id=a", 16),
        ("?id=a {a: 1} {b: 2} x", 22),
    ],
)
def test_an_object_ends_with_the_line(rest, column):
    found = problem(f"{EVERY_MINUTE} task {rest}")

    assert found.column == column
    assert found.expected == "?options, or a payload {…} at the end of the line"


@pytest.mark.feature("F268")
@pytest.mark.parametrize(
    ("rest", "column"),
    [
        ("{a: }", 20),
        ("{a 1}", 19),
        ("{a: 1 b: 2}", 22),
        ("?id=it {a: 'b}", 30),
        ("{a: 1}}", 22),
        ("{a: 01}", 21),
        ("{a: undefined}", 20),
    ],
)
def test_invalid_json5_is_rejected_at_its_column(rest, column):
    found = problem(f"{EVERY_MINUTE} task {rest}")

    assert (found.line, found.column, found.expected) == (1, column, "a payload in JSON5")


@pytest.mark.feature("F268")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{a: Infinity}", "JSON can represent"),
        ("{a: -Infinity}", "JSON can represent"),
        ("{a: NaN}", "JSON can represent"),
        ("{a: 1e999}", "JSON can represent"),
        ("{a: '\\u0000'}", "cannot read NUL"),
        ("{'\\0': 1}", "cannot read NUL"),
        ("{a: '\\ud800'}", "surrogates"),
        ("{a: " + "[" * 600 + "]" * 600 + "}", "nest"),
        ('{"a": ' + "[" * 20000 + "]" * 20000 + "}", "nest"),
    ],
)
def test_a_payload_that_the_database_cannot_store_is_rejected(text, reason):
    found = problem(f"{EVERY_MINUTE} task {text}")

    assert (found.line, found.column, found.text) == (1, 16, "{…}")
    assert reason in found.expected


@pytest.mark.feature("F268", "F285")
@pytest.mark.parametrize(
    "text",
    [
        f"task {{password: {SECRET}}}",
        f"task {{password: '{SECRET}' oops}}",
        f"task {{password: '{SECRET}}}",
        f"task {{password: '{SECRET}', size: Infinity}}",
        f"task {{password: '{SECRET}', size: '\\u0000'}}",
        f"task {{{SECRET}: {'[' * 600}{']' * 600}}}",
        f"task {{password:'{SECRET}'}} # nightly",
        f"task {{password:'{SECRET}'",
        f"task {{password:'{SECRET}\u2028'}}",
        f"1st {{password: '{SECRET}'}}",
        f"task ?max=0 {{password: '{SECRET}'}}",
        f"task {{password: '{SECRET}'}}\n" + "#" * 70 * KILOBYTE,
    ],
)
def test_a_problem_never_contains_the_payload(text):
    error = refused(f"{EVERY_MINUTE} {text}")

    assert SECRET not in str(error)
    assert SECRET not in repr(error)


# Everything at once


@pytest.mark.feature("F255", "F285")
def test_all_problems_are_reported_at_once():
    text = "\n".join(
        [
            "# nightly",
            "60 * * * * good",
            "* * * * * fine",
            "  1,2-1 24 * * * a.b ?x=1&max=0 {a: }",
            "",
            "@daily task",
            "* * * * * task ?id=1",
        ]
    )

    assert places(text) == [
        (2, 1, "60"),
        (4, 5, "2-1"),
        (4, 9, "24"),
        (4, 18, "a.b"),
        (4, 23, "x"),
        (4, 27, "max=0"),
        (4, 37, "}"),
        (6, 1, "@daily"),
        (7, 17, "id=1"),
    ]


@pytest.mark.feature("F285")
def test_the_message_names_source_line_column_text_and_what_was_expected():
    with pytest.raises(CrontabError) as caught:
        parse_crontab("* * * * * a\n* * 40 * 9 a ?max=x\n", source="conf/crontab")

    assert str(caught.value).splitlines() == [
        "conf/crontab: line 2, column 5: expected a day of the month from 1 to 31, got '40'",
        "conf/crontab: line 2, column 10: expected a day of the week from 0 to 7, got '9'",
        "conf/crontab: line 2, column 15: expected for max a number from 1, got 'max=x'",
    ]
    assert caught.value.source == "conf/crontab"


@pytest.mark.feature("F285")
def test_long_texts_are_cut_in_the_message_alone():
    error = refused(f"{EVERY_MINUTE} {'é' * 500}")

    assert "é" * 77 + "..." in str(error)
    assert "é" * 78 not in str(error)
    assert error.problems[0].text == "é" * 500


@pytest.mark.feature("F285")
def test_the_error_is_a_value_error():
    assert isinstance(refused("nothing"), ValueError)


@pytest.mark.feature("F285")
def test_the_error_can_travel_between_processes():
    error = refused("60 * * * * a\n* * * * * b c")

    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is CrontabError
    assert copy.problems == error.problems
    assert (copy.source, str(copy)) == (error.source, str(error))


@pytest.mark.feature("F285")
def test_items_can_travel_between_processes():
    items = parse_crontab(f"{EVERY_MINUTE} task ?id=it&fill=1d&jobKey=k {{a: [1]}}")

    assert pickle.loads(pickle.dumps(items)) == items


# Identifiers


@pytest.mark.feature("F265")
def test_every_line_of_an_identifier_that_is_there_twice_is_listed():
    text = "\n".join(
        [
            "1 * * * * a",
            "2 * * * * b ?id=free",
            "# between",
            "3 * * * * b ?id=a",
            "4 * * * * c",
            "5 * * * * a",
            "6 * * * * d ?id=c",
        ]
    )

    error = refused(text)

    found = [(each.line, each.text) for each in error.problems]
    assert found == [(1, "a"), (4, "a"), (5, "c"), (6, "a"), (7, "c")]
    assert all("a unique identifier" in each.expected for each in error.problems)


@pytest.mark.feature("F265")
def test_repeated_identifiers_and_other_problems_come_in_the_order_of_their_lines():
    text = "* * * * * a\n60 * * * * b\n* * * * * a\n* * * * * 1"

    assert [each.line for each in refused(text).problems] == [1, 2, 3, 4]


@pytest.mark.feature("F265")
def test_a_task_may_be_there_twice_under_two_identifiers():
    items = parse_crontab("1 * * * * a\n2 * * * * a ?id=other")

    assert [(item.task, item.identifier) for item in items] == [("a", "a"), ("a", "other")]


# Size


def of_size(size: int) -> str:
    line = "* * * * * task\n"
    return line + "#" * (size - len(line))


@pytest.mark.feature("F285")
def test_a_crontab_has_at_most_64_kilobytes():
    assert len(parse_crontab(of_size(64 * KILOBYTE))) == 1

    found = problem(of_size(64 * KILOBYTE + 1))

    assert (found.line, found.column) == (1, 1)
    assert found.expected == "at most 65,536 bytes"


@pytest.mark.feature("F285")
def test_its_size_is_that_in_utf8():
    letters = 33 * KILOBYTE

    assert parse_crontab("#" + "a" * letters) == []
    assert problem("#" + "é" * letters).expected == "at most 65,536 bytes"


# The three examples of the documentation

WEEKLY: dict[str, Any] = {"minutes": {30}, "hours": {4}, "dates": DATES, "months": MONTHS}


def fields_of(item: ParsedCronItem) -> dict[str, Any]:
    match = item.match
    assert isinstance(match, CronPattern)
    return {name: getattr(match, name) for name in CronPattern.__dataclass_fields__}


@pytest.mark.feature("F281")
def test_weekly_on_monday():
    item = one("30 4 * * 1 send_weekly_email")

    assert fields_of(item) == {**WEEKLY, "dows": {1}}
    assert (item.task, item.identifier) == ("send_weekly_email", "send_weekly_email")


@pytest.mark.feature("F281")
def test_weekly_on_monday_with_options_and_payload():
    item = one("30 4 * * 1 send_weekly_email ?fill=2d&max=10 {onboarding:false}")

    assert fields_of(item) == {**WEEKLY, "dows": {1}}
    assert (item.backfill, item.spec.max_attempts) == (timedelta(days=2), 10)
    assert item.payload == {"onboarding": False}


@pytest.mark.feature("F281")
def test_every_four_hours():
    item = one("0 */4 * * * rollup")

    assert item.task == "rollup"
    assert fields_of(item) == {
        "minutes": {0},
        "hours": {0, 4, 8, 12, 16, 20},
        "dates": DATES,
        "months": MONTHS,
        "dows": DOWS,
    }


def test_a_step_that_leads_past_its_field_is_warned_about(caplog):
    doubtful = {
        "*/60 * * * *": "column 1: */60 means only 0: the next value exceeds 59",
        "5 */24 * * *": "column 3: */24 means only 0: the next value exceeds 23",
        "5 4 1,*/31 * *": "column 7: */31 means only 1: the next value exceeds 31",
        "5 4 * * */7": "column 9: */7 means only 0: the next value exceeds 6",
    }
    for pattern, said in doubtful.items():
        caplog.clear()
        parse_crontab(f"{pattern} task", source="conf/crontab")
        parse_cron_items([CronItem(task="task", match=pattern)])
        first, second = [each.getMessage() for each in caplog.records]
        assert first == f"conf/crontab: line 1, {said}"
        assert second == f"pattern {pattern!r}: line 1, {said}"

    caplog.clear()
    parse_crontab("*/59,0 */23 */30 */11 */6 task")
    assert caplog.records == []
