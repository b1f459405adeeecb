"""Cron items in code: what they may say, what they add, and where a worker finds them."""

import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from graphile_worker import (
    App,
    ConfigurationError,
    Cron,
    CronItem,
    CrontabError,
    ParsedCronItem,
    TaskRouter,
    TimestampDigest,
    parse_cron_items,
    parse_crontab,
)
from graphile_worker._discovery.discovery import load_crontab, resolve_cron_items
from graphile_worker.crontab.patterns import CronPattern

SECRET = "hunter2"
MINUTE = datetime(2021, 1, 1, 4, 0, tzinfo=UTC)
EVERY_MINUTE = "* * * * *"


def parsed(**given: Any) -> ParsedCronItem:
    [item] = parse_cron_items([CronItem(**{"task": "task", "match": EVERY_MINUTE, **given})])
    return item


def refused(**given: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        parsed(**given)
    return str(caught.value)


def finding(tasks: Any, **given: Any) -> Callable[[], list[ParsedCronItem]]:
    find = resolve_cron_items(tasks, **given)
    assert find is not None
    return find


def identifiers(items: list[ParsedCronItem]) -> list[str]:
    return [item.identifier for item in items]


# What an item says


@pytest.mark.feature("F286", "F287")
def test_an_item_has_a_task_a_payload_and_an_identifier():
    item = parsed(task="users/send", payload={"to": "ada"}, identifier="it")

    assert (item.task, item.payload, item.identifier) == ("users/send", {"to": "ada"}, "it")


@pytest.mark.feature("F287")
def test_the_default_identifier_of_an_item_is_its_task():
    item = parsed(task="users/send")

    assert (item.identifier, item.payload) == ("users/send", {})


@pytest.mark.feature("F286")
def test_an_item_in_code_means_what_its_line_in_a_crontab_means():
    options = {"queue_name": "q", "max_attempts": 3, "priority": -1, "job_key": "k"}
    item = parsed(
        match="30 4 * * 1",
        identifier="it",
        payload={"a": 1},
        backfill=timedelta(days=2),
        **options,
    )

    line = "30 4 * * 1 task ?id=it&fill=2d&queue=q&max=3&priority=-1&jobKey=k {a: 1}"
    assert parse_crontab(line) == [item]


@pytest.mark.feature("F290")
def test_an_item_has_the_options_of_a_job():
    item = parsed(
        backfill=timedelta(hours=3),
        max_attempts=3,
        queue_name="mail",
        priority=-5,
        job_key="k",
        job_key_mode="preserve_run_at",
    )

    assert item.backfill == timedelta(hours=3)
    spec = item.spec
    assert (spec.max_attempts, spec.queue_name, spec.priority) == (3, "mail", -5)
    assert (spec.job_key, spec.job_key_mode) == ("k", "preserve_run_at")


@pytest.mark.feature("F290")
def test_options_that_are_left_out_are_left_to_the_database():
    item = parsed()

    assert item.backfill == timedelta(0)
    spec = item.spec
    assert (spec.max_attempts, spec.queue_name, spec.priority) == (None, None, None)
    assert (spec.job_key, spec.job_key_mode, spec.flags) == (None, None, None)


@pytest.mark.feature("F290")
@pytest.mark.parametrize(
    ("given", "mode"), [(None, "replace"), ("replace", "replace"), ("preserve_run_at",) * 2]
)
def test_the_default_mode_of_a_key_is_replace(given, mode):
    assert parsed(job_key="k", job_key_mode=given).spec.job_key_mode == mode


@pytest.mark.feature("F286")
def test_items_keep_their_order_and_come_from_anything_iterable():
    items = (CronItem(task=name, match=EVERY_MINUTE) for name in "cab")

    assert identifiers(parse_cron_items(items)) == ["c", "a", "b"]
    assert parse_cron_items([]) == []


@pytest.mark.feature("F287")
def test_a_payload_that_changes_later_does_not_change_the_item():
    payload = {"a": 1}
    item = parsed(payload=payload)

    payload["a"] = 2

    assert item.payload == {"a": 1}


# When: a pattern or a function


@pytest.mark.feature("F288")
def test_match_and_pattern_are_two_words_for_one_thing():
    item = CronItem(task="task", pattern="30 4 * * 1")

    assert parse_cron_items([item]) == [parsed(match="30 4 * * 1")]


@pytest.mark.feature("F288")
@pytest.mark.parametrize(
    "given", [{}, {"match": EVERY_MINUTE, "pattern": EVERY_MINUTE}], ids=["none", "both"]
)
def test_either_match_or_pattern_is_required(given):
    with pytest.raises(ConfigurationError, match="pass either match or pattern"):
        parse_cron_items([CronItem(task="task", **given)])


@pytest.mark.feature("F288")
@pytest.mark.parametrize("text", ["30 4 * * 1", "  30  4 *\t* 1  "])
def test_a_pattern_is_five_fields_with_blanks_between_them(text):
    match = parsed(match=text).match

    assert isinstance(match, CronPattern)
    assert [match.minutes, match.hours, match.dows] == [frozenset({each}) for each in (30, 4, 1)]


@pytest.mark.feature("F288")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "five fields"),
        ("* * * *", "five fields"),
        ("* * * * * task", "five fields"),
        ("@daily", "five fields"),
        ("60 * * * *", "column 1: expected a minute from 0 to 59, got '60'"),
        ("* * *  5-4 *", "column 8: expected a range whose end is larger"),
        ("* * * * */0", "column 9: expected a step of 1 or more"),
        ("* * * * MON", "column 9: expected a day of the week from 0 to 7"),
    ],
)
def test_an_invalid_pattern_is_rejected_with_what_was_expected(text, said):
    assert said in refused(match=text)


@pytest.mark.feature("F288")
def test_all_problems_of_a_pattern_are_reported_at_once():
    said = refused(match="60 24 0 13 8")

    assert [f"got '{each}'" in said for each in (60, 24, 0, 13, 8)] == [True] * 5


@pytest.mark.feature("F289")
def test_a_function_is_asked_about_the_parts_of_the_minute():
    asked: list[TimestampDigest] = []

    def match(digest: TimestampDigest) -> bool:
        asked.append(digest)
        return digest.hour == 4

    item = parsed(match=match)

    assert item.is_due(MINUTE)
    assert not item.is_due(MINUTE + timedelta(hours=1))
    assert asked == [
        TimestampDigest(min=0, hour=4, date=1, month=1, dow=5),
        TimestampDigest(min=0, hour=5, date=1, month=1, dow=5),
    ]


@pytest.mark.feature("F289")
@pytest.mark.parametrize(
    ("day", "dow"), [(3, 0), (4, 1), (5, 2), (6, 3), (7, 4), (8, 5), (9, 6), (10, 0)]
)
def test_the_days_of_the_week_count_from_sunday(day, dow):
    assert TimestampDigest.from_datetime(datetime(2021, 1, day)).dow == dow


@pytest.mark.feature("F289")
def test_pattern_may_be_a_function_too():
    [item] = parse_cron_items([CronItem(task="task", pattern=lambda digest: digest.min == 7)])

    assert [item.is_due(MINUTE.replace(minute=each)) for each in (6, 7, 8)] == [False, True, False]


@pytest.mark.feature("F289")
@pytest.mark.parametrize("match", [5, True, [EVERY_MINUTE], b"* * * * *"])
def test_match_is_a_pattern_or_a_function(match):
    assert f"match must be a pattern or a function, got {match!r}" in refused(match=match)


# What is refused


@pytest.mark.feature("F286")
def test_an_invalid_item_is_named_by_its_index_and_its_task():
    items = [CronItem(task="a", match=EVERY_MINUTE), CronItem(task="b", match="never")]

    with pytest.raises(ConfigurationError, match=r"^cron item 1 \(b\): "):
        parse_cron_items(items)


@pytest.mark.feature("F286")
@pytest.mark.parametrize("item", [{"task": "a", "match": EVERY_MINUTE}, "* * * * * a", None])
def test_only_cron_items_are_accepted(item):
    with pytest.raises(ConfigurationError, match="cron item 0: expected a CronItem, got"):
        parse_cron_items([item])


@pytest.mark.feature("F287")
@pytest.mark.parametrize("task", ["", None, 5, "a" * 129, "a\x00b"])
def test_a_task_is_one_that_a_job_could_have(task):
    assert refused(task=task, identifier="it").startswith("cron item 0 (")


@pytest.mark.feature("F287")
@pytest.mark.parametrize("identifier", [5, "a\x00b", "\ud800", "ü" * 1001])
def test_an_identifier_is_text_that_the_database_can_hold(identifier):
    assert "identifier" in refused(identifier=identifier)


@pytest.mark.feature("F287")
@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ([1], "payload must be a mapping, got list"),
        ("{}", "payload must be a mapping, got str"),
        (5, "payload must be a mapping, got int"),
        ({"a": object()}, "object has no JSON form"),
        ({1: "a"}, "keys must be str, got int"),
        ({"a": float("nan")}, "Out of range float"),
        ({"a": "\x00"}, "NUL"),
    ],
)
def test_a_payload_is_an_object_that_json_can_hold(payload, said):
    assert said in refused(payload=payload)


@pytest.mark.feature("F287")
@pytest.mark.parametrize(
    "payload", [[SECRET], {"password": SECRET, "a": object()}, {SECRET: "\x00"}]
)
def test_an_error_never_contains_the_payload(payload):
    assert SECRET not in refused(payload=payload)


@pytest.mark.feature("F290")
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_attempts", 0),
        ("max_attempts", 32768),
        ("max_attempts", "3"),
        ("queue_name", "q" * 129),
        ("queue_name", 5),
        ("priority", 1.5),
        ("priority", 32768),
        ("job_key", ""),
        ("job_key", "k" * 513),
    ],
)
def test_options_are_those_that_a_job_could_have(option, value):
    said = refused(**{option: value})

    assert said.startswith("cron item 0 (task): ")
    assert option in said


@pytest.mark.feature("F290")
@pytest.mark.parametrize("mode", ["unsafe_dedupe", "Replace", "", 5])
def test_a_key_replaces_or_preserves(mode):
    said = refused(job_key="k", job_key_mode=mode)

    assert f"job_key_mode must be 'replace' or 'preserve_run_at', got {mode!r}" in said


@pytest.mark.feature("F290")
@pytest.mark.parametrize("period", [timedelta(minutes=-1), 3600, "1d", None])
def test_backfill_is_a_period_that_is_not_negative(period):
    assert f"backfill must be a timedelta of at least 0, got {period!r}" in refused(backfill=period)


@pytest.mark.feature("F249")
@pytest.mark.parametrize(
    "tz", ["Mars/Olympus", "../../etc/passwd", "/etc/localtime", "", "a\x00b", None, 5, UTC]
)
def test_a_time_zone_is_one_by_its_name(tz):
    assert f"unknown time zone {tz!r}" in refused(tz=tz)


@pytest.mark.feature("F286")
def test_repeated_identifiers_are_rejected_and_all_named():
    items = [
        CronItem(task=task, identifier=identifier, match=EVERY_MINUTE)
        for task, identifier in [("a", None), ("b", "x"), ("c", "a"), ("d", None), ("e", "x")]
    ]

    with pytest.raises(ConfigurationError, match="several cron items are called 'a', 'x'"):
        parse_cron_items(items)


@pytest.mark.feature("F287")
def test_items_with_patterns_can_travel_between_processes():
    item = parsed(match="1 2 * * *", tz="Europe/Paris", payload={"a": [1]}, job_key="k")

    assert pickle.loads(pickle.dumps(item)) == item


# Time zones


@pytest.mark.feature("F249")
def test_times_are_in_utc_unless_a_zone_is_given():
    item = parsed(match="0 4 * * *")

    assert item.zone is None
    assert item.is_due(MINUTE)
    assert parsed(match="0 4 * * *", tz="UTC") == item


@pytest.mark.feature("F249")
def test_an_item_may_have_its_own_time_zone():
    item = parsed(match="0 5 * * *", tz="Europe/Paris")

    assert item.zone == ZoneInfo("Europe/Paris")
    assert item.is_due(MINUTE)
    assert not item.is_due(MINUTE + timedelta(hours=1))
    assert next(item.upcoming(MINUTE)) == MINUTE + timedelta(days=1)


@pytest.mark.feature("F249")
def test_a_function_gets_the_local_time_of_the_zone():
    item = parsed(match=lambda digest: digest.dow == 4 and digest.hour == 23, tz="America/New_York")

    assert item.is_due(MINUTE)  # 23:00 of the day before, which was a Thursday


# What it adds


@pytest.mark.feature("F269", "F270", "F271")
def test_a_job_has_its_minute_in_the_payload_and_as_run_at():
    spec = parsed(payload={"a": 1}).spec_at(MINUTE)

    assert spec.payload == {
        "a": 1,
        "_cron": {"ts": "2021-01-01T04:00:00.000Z", "backfilled": False},
    }
    assert spec.run_at == MINUTE


@pytest.mark.feature("F271")
def test_a_job_has_whether_it_was_backfilled_in_the_payload():
    spec = parsed().spec_at(MINUTE, backfilled=True)

    assert spec.payload["_cron"]["backfilled"] is True


@pytest.mark.feature("F269")
def test_the_queues_own_part_of_the_payload_wins():
    item = parsed(payload={"_cron": {"ts": "mine", "more": 1}, "a": {"b": 2}})

    assert item.spec_at(MINUTE).payload == {
        "a": {"b": 2},
        "_cron": {"ts": "2021-01-01T04:00:00.000Z", "backfilled": False},
    }
    assert item.payload["_cron"] == {"ts": "mine", "more": 1}


@pytest.mark.feature("F272")
@pytest.mark.parametrize("payload", [None, {}])
def test_a_job_without_a_payload_has_an_object_all_the_same(payload):
    assert parsed(payload=payload).spec_at(MINUTE).payload == {
        "_cron": {"ts": "2021-01-01T04:00:00.000Z", "backfilled": False}
    }


@pytest.mark.feature("F270")
@pytest.mark.parametrize(
    ("minute", "text"),
    [
        (datetime(2024, 2, 29, 23, 59, tzinfo=UTC), "2024-02-29T23:59:00.000Z"),
        (datetime(2024, 12, 31, 0, 0, tzinfo=UTC), "2024-12-31T00:00:00.000Z"),
        (datetime(1999, 1, 2, 3, 4, tzinfo=UTC), "1999-01-02T03:04:00.000Z"),
    ],
)
def test_the_minute_is_written_as_iso_8601_with_milliseconds_in_utc(minute, text):
    assert parsed().spec_at(minute).payload["_cron"]["ts"] == text
    assert datetime.fromisoformat(text) == minute


@pytest.mark.feature("F270")
def test_the_minute_is_written_in_utc_for_an_item_of_a_zone_too():
    spec = parsed(match="0 5 * * *", tz="Europe/Paris").spec_at(MINUTE)

    assert spec.payload["_cron"]["ts"] == "2021-01-01T04:00:00.000Z"
    assert spec.run_at == MINUTE


def test_a_job_has_the_options_of_its_item():
    item = parsed(task="send", queue_name="q", max_attempts=2, priority=1, job_key="k")
    spec = item.spec_at(MINUTE)

    assert (spec.identifier, spec.queue_name, spec.max_attempts) == ("send", "q", 2)
    assert (spec.priority, spec.job_key, spec.job_key_mode) == (1, "k", "replace")


# Helpers


@pytest.mark.feature("F291")
@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (Cron.every_minute(), "* * * * *"),
        (Cron.every_minutes(1), "*/1 * * * *"),
        (Cron.every_minutes(15), "*/15 * * * *"),
        (Cron.every_minutes(30), "*/30 * * * *"),
        (Cron.hourly_at(0), "0 * * * *"),
        (Cron.hourly_at(59), "59 * * * *"),
        (Cron.daily_at(8), "0 8 * * *"),
        (Cron.daily_at(23, 59), "59 23 * * *"),
        (Cron.weekly_on("monday", 4, 30), "30 4 * * 1"),
        (Cron.weekly_on("Sunday", 0), "0 0 * * 0"),
        (Cron.weekly_on(6, 12), "0 12 * * 6"),
        (Cron.monthly_on(1, 0), "0 0 1 * *"),
        (Cron.monthly_on(31, 6, 15), "15 6 31 * *"),
    ],
)
def test_common_cases_have_words(pattern, text):
    assert pattern == text
    assert parsed(match=pattern) == parsed(match=text)


@pytest.mark.feature("F291")
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Cron.every_minutes(0), "minutes must be from 1 to 30, got 0"),
        (lambda: Cron.every_minutes(60), "minutes must be from 1 to 30, got 60"),
        (lambda: Cron.every_minutes(7), "minutes must divide an hour evenly, got 7"),
        (lambda: Cron.every_minutes(True), "minutes must be from 1 to 30, got True"),
        (lambda: Cron.hourly_at(60), "minute must be from 0 to 59, got 60"),
        (lambda: Cron.hourly_at("5"), "minute must be from 0 to 59, got '5'"),  # type: ignore[arg-type]
        (lambda: Cron.daily_at(24), "hour must be from 0 to 23, got 24"),
        (lambda: Cron.daily_at(8, -1), "minute must be from 0 to 59, got -1"),
        (lambda: Cron.daily_at(8.5), "hour must be from 0 to 23, got 8.5"),  # type: ignore[arg-type]
        (lambda: Cron.weekly_on("lundi", 4), "day must be from 0 to 6, got 'lundi'"),
        (lambda: Cron.weekly_on(7, 4), "day must be from 0 to 6, got 7"),
        (lambda: Cron.weekly_on("monday", 24), "hour must be from 0 to 23, got 24"),
        (lambda: Cron.monthly_on(0, 4), "date must be from 1 to 31, got 0"),
        (lambda: Cron.monthly_on(32, 4), "date must be from 1 to 31, got 32"),
    ],
)
def test_invalid_arguments_of_cron_helpers_are_rejected(make, said):
    with pytest.raises(ConfigurationError, match=f"^{said}"):
        make()


@pytest.mark.feature("F291")
@pytest.mark.parametrize("minutes", [1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30])
def test_every_minutes_has_the_same_interval_across_the_hour(minutes):
    item = parsed(match=Cron.every_minutes(minutes))
    runs = item.upcoming(MINUTE)

    first = [next(runs) for _ in range(2 * 60 // minutes)]

    assert first == [MINUTE + timedelta(minutes=minutes * n) for n in range(1, len(first) + 1)]


# Beside the task


@pytest.mark.feature("F291")
def test_a_decorator_schedules_a_task():
    tasks = TaskRouter[None]()

    @tasks.cron("30 4 * * 1", id="weekly", payload={"all": True}, backfill=timedelta(days=1))
    @tasks.task
    def report(all: bool) -> str:
        return f"all: {all}"

    [item] = tasks.cron_items()
    assert item == parsed(
        task="report",
        match="30 4 * * 1",
        identifier="weekly",
        payload={"all": True},
        backfill=timedelta(days=1),
    )
    assert tasks.tasks() == {"report": report}
    assert report(True) == "all: True"


@pytest.mark.feature("F291")
def test_an_app_takes_cron_as_a_router_does():
    app = App[None]("postgres://nobody@127.0.0.1:1/nowhere")

    @app.cron(Cron.daily_at(8), tz="Europe/Paris")
    @app.task
    async def greet() -> None: ...

    [item] = app.cron_items()
    assert (item.task, item.zone) == ("greet", ZoneInfo("Europe/Paris"))


@pytest.mark.feature("F289", "F291")
def test_beside_a_task_may_stand_a_function_of_the_minute():
    tasks = TaskRouter[None]()

    @tasks.cron(lambda digest: digest.min == 7)
    @tasks.task
    def report() -> None: ...

    [item] = tasks.cron_items()
    assert item.is_due(MINUTE.replace(minute=7))
    assert not item.is_due(MINUTE)


@pytest.mark.feature("F291")
def test_cron_below_the_task_is_rejected():
    tasks = TaskRouter[None]()

    def report() -> None: ...

    wrong: Any = report
    with pytest.raises(ConfigurationError, match=r"write @cron\(…\) above @task, not below it"):
        tasks.cron(EVERY_MINUTE)(wrong)
    assert tasks.cron_items() == []


@pytest.mark.feature("F291")
def test_an_invalid_pattern_of_a_decorator_is_rejected_at_definition():
    tasks = TaskRouter[None]()

    @tasks.task
    def report() -> None: ...

    with pytest.raises(ConfigurationError, match="60"):
        tasks.cron("60 * * * *")(report)
    assert tasks.cron_items() == []


@pytest.mark.feature("F290", "F291")
def test_jobs_of_the_crontab_get_the_options_of_their_task():
    tasks = TaskRouter[None]()

    @tasks.cron(EVERY_MINUTE)
    @tasks.task(queue_name="slow", priority=5, max_attempts=3)
    def report() -> None: ...

    [item] = tasks.cron_items()
    spec = item.spec
    assert (spec.queue_name, spec.priority, spec.max_attempts) == ("slow", 5, 3)


@pytest.mark.feature("F290", "F291")
def test_options_of_cron_override_those_of_the_task():
    tasks = TaskRouter[None]()

    @tasks.cron(
        EVERY_MINUTE,
        queue_name="fast",
        priority=0,
        max_attempts=1,
        job_key="k",
        job_key_mode="preserve_run_at",
    )
    @tasks.task(queue_name="slow", priority=5, max_attempts=3)
    def report() -> None: ...

    [item] = tasks.cron_items()
    spec = item.spec
    assert (spec.queue_name, spec.priority, spec.max_attempts) == ("fast", 0, 1)
    assert (spec.job_key, spec.job_key_mode) == ("k", "preserve_run_at")


@pytest.mark.feature("F291")
def test_a_task_may_have_several_items():
    tasks = TaskRouter[None]()

    @tasks.cron("0 8 * * *", id="morning")
    @tasks.cron("0 20 * * *")
    @tasks.task
    def report() -> None: ...

    assert identifiers(tasks.cron_items()) == ["report", "morning"]


@pytest.mark.feature("F291")
def test_items_of_routers_have_their_prefix_and_are_found_in_the_app():
    app, users, mails = (
        TaskRouter[None](),
        TaskRouter[None](prefix="users/"),
        TaskRouter[None](prefix="mails/"),
    )
    app.include(users)
    users.include(mails)

    @app.cron(EVERY_MINUTE)
    @app.task
    def report() -> None: ...

    @users.cron(EVERY_MINUTE)
    @users.task(name="clean")
    def clean_up() -> None: ...

    @mails.cron(EVERY_MINUTE, id="mails")
    @mails.task
    def send() -> None: ...

    found = {item.identifier: item.task for item in app.cron_items()}
    assert found == {"report": "report", "users/clean": "users/clean", "mails": "mails/send"}


@pytest.mark.feature("F291")
def test_two_items_with_one_identifier_are_rejected():
    app, router = TaskRouter[None](), TaskRouter[None](prefix="other/")
    app.include(router)

    @app.cron(EVERY_MINUTE, id="it")
    @app.task
    def one() -> None: ...

    @router.cron(EVERY_MINUTE, id="it")
    @router.task
    def two() -> None: ...

    assert identifiers(router.cron_items()) == ["it"]
    with pytest.raises(ConfigurationError, match="several cron items are called 'it'"):
        app.cron_items()


@pytest.mark.feature("F291")
def test_some_tasks_keep_their_items_alone():
    app, router = TaskRouter[None](), TaskRouter[None](prefix="other/")
    app.include(router)

    @app.cron(EVERY_MINUTE)
    @app.task
    def one() -> None: ...

    @router.cron(EVERY_MINUTE, id="twice")
    @router.cron(EVERY_MINUTE)
    @router.task
    def two() -> None: ...

    assert identifiers(app.subset(["one"]).cron_items()) == ["one"]
    assert identifiers(app.subset(["other/two"]).cron_items()) == ["other/two", "twice"]
    assert app.subset([]).cron_items() == []


# Where a worker finds them


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(content: bytes) -> Path:
        file = tmp_path / "crontab"
        file.write_bytes(content)
        return file

    return write


@pytest.fixture
def app() -> TaskRouter[None]:
    tasks = TaskRouter[None]()

    @tasks.cron(EVERY_MINUTE)
    @tasks.task
    def mine() -> None: ...

    return tasks


def test_a_crontab_file_is_read(write):
    file = write("# täglich\r\n0 8 * * * greet {who: 'Ädä'}\r\n".encode())

    [item] = load_crontab(file)

    assert (item.task, item.payload) == ("greet", {"who": "Ädä"})


def test_a_byte_order_mark_is_not_part_of_a_crontab(write):
    assert identifiers(load_crontab(write(b"\xef\xbb\xbf0 8 * * * greet\n"))) == ["greet"]


def test_a_mark_before_a_comment_is_none_either(write):
    assert load_crontab(write(b"\xef\xbb\xbf# words\n")) == []


def test_a_crontab_that_is_not_utf8_is_rejected_with_its_name(write):
    file = write(b"# t\xe4glich\n0 8 * * * greet\n")

    with pytest.raises(ConfigurationError, match="is not UTF-8") as caught:
        load_crontab(file)
    assert str(file) in str(caught.value)


def test_a_missing_crontab_is_rejected_with_its_name(tmp_path):
    with pytest.raises(ConfigurationError, match="nowhere cannot be read: No such file"):
        load_crontab(tmp_path / "nowhere")


def test_a_folder_is_not_a_crontab(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot be read: Is a directory"):
        load_crontab(tmp_path)


def test_problems_of_a_crontab_contain_the_name_of_the_file(write):
    file = write(b"* * * * * a\n60 * * * * b\n")

    with pytest.raises(CrontabError) as caught:
        load_crontab(file)
    assert str(caught.value).startswith(f"{file}: line 2, column 1: ")


@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_may_be_named_by_text_or_path(write, kind):
    file = write(b"* * * * * a\n")

    assert identifiers(finding({}, crontab_file=kind(file))()) == ["a"]


def test_a_crontab_may_be_text():
    assert identifiers(finding({}, crontab="* * * * * a")()) == ["a"]


@pytest.mark.feature("F284")
def test_items_may_come_from_either_parser():
    items = [*parse_crontab("* * * * * a"), parsed(task="b")]

    assert finding({}, cron_items=items)() == items


@pytest.mark.feature("F284")
@pytest.mark.parametrize(
    "item",
    [CronItem(task="a", match=EVERY_MINUTE), {"task": "a", "match": EVERY_MINUTE}, "* * * * * a"],
)
def test_items_that_were_not_parsed_are_rejected(item):
    items: list[Any] = [parsed(task="b"), item]

    with pytest.raises(ConfigurationError, match=r"come from parse_cron_items\(\)"):
        resolve_cron_items({}, cron_items=items)


@pytest.mark.feature("F284")
@pytest.mark.parametrize(
    "given",
    [
        {"crontab": "", "crontab_file": "crontab"},
        {"crontab": "", "cron_items": []},
        {"crontab_file": "crontab", "cron_items": []},
        {"crontab": "", "crontab_file": "crontab", "cron_items": []},
    ],
)
def test_there_is_one_source_beside_the_app(given):
    with pytest.raises(ConfigurationError, match="one of crontab, crontab_file and cron_items"):
        resolve_cron_items({}, **given)


def test_without_a_source_there_are_the_items_of_the_app(app):
    assert finding(app)() == app.cron_items()


@pytest.mark.parametrize("given", [{}, {"crontab": ""}, {"crontab": "# nothing yet"}])
def test_where_there_are_none_and_will_be_none_nothing_is_asked(given):
    assert resolve_cron_items({"task": print}, **given) is None
    assert resolve_cron_items(TaskRouter[None](), **given) is None


def test_items_of_an_app_and_of_a_crontab_come_together(app):
    assert identifiers(finding(app, crontab="* * * * * a")()) == ["mine", "a"]


def test_names_differ_across_app_and_crontab(app):
    with pytest.raises(ConfigurationError, match="several cron items are called 'mine'"):
        resolve_cron_items(app, crontab="* * * * * mine")


@pytest.mark.feature("F284")
def test_a_list_of_items_may_change_later(app):
    items = [parsed(task="a")]
    find = finding(app, cron_items=items)

    items.append(parsed(task="b"))
    assert identifiers(find()) == ["mine", "a", "b"]
    items.clear()
    assert identifiers(find()) == ["mine"]


@pytest.mark.feature("F284")
def test_a_list_that_is_empty_now_may_be_filled_later():
    items: list[ParsedCronItem] = []
    find = finding({}, cron_items=items)

    assert find() == []
    items.append(parsed(task="a"))
    assert identifiers(find()) == ["a"]


@pytest.mark.feature("F291")
@pytest.mark.parametrize("payload", [None, {"wrong": 1}, {"number": "text"}])
def test_a_payload_that_does_not_fit_the_task_is_rejected(payload):
    tasks: TaskRouter[None] = TaskRouter()

    @tasks.task
    def count(number: int) -> None: ...

    with pytest.raises(ConfigurationError, match="^cron item 'count': count: \"number\" "):
        tasks.cron("* * * * *", payload=payload)(count)


def test_a_task_that_takes_the_whole_payload_must_accept_cron():
    tasks: TaskRouter[None] = TaskRouter()

    @tasks.task
    def whole(payload: dict[str, int], /) -> None: ...

    with pytest.raises(ConfigurationError, match=r"^cron item 'whole': whole: .* the key _cron"):
        tasks.cron("* * * * *", payload={"a": 1})(whole)


def test_a_payload_that_fits_or_cannot_be_judged_yet_is_taken():
    tasks: TaskRouter[None] = TaskRouter()

    @tasks.task
    def count(number: int, more: str = "") -> None: ...

    @tasks.task
    def whole(payload: dict[str, Any], /) -> None: ...

    @tasks.task
    def later(thing: "NotThereYet") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    tasks.cron("* * * * *", payload={"number": 1})(count)
    tasks.cron("* * * * *", payload={"a": 1})(whole)
    tasks.cron("* * * * *")(later)

    assert [item.payload for item in tasks.cron_items()] == [{"number": 1}, {"a": 1}, {}]
