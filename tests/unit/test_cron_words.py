"""Cron patterns in words: the common ones, and None where the pattern is clearer."""

from typing import Any

from graphile_worker.crontab.items import CronItem, ParsedCronItem, parse_cron_items, parse_pattern
from graphile_worker.crontab.patterns import format_pattern
from graphile_worker.crontab.summaries import MAX_SUMMARY_BYTES, CronSummary, summarize_items
from graphile_worker.crontab.words import describe_pattern


def item(pattern: str, identifier: str) -> ParsedCronItem:
    (parsed,) = parse_cron_items([CronItem(task="task", match=pattern, identifier=identifier)])
    return parsed


def test_common_patterns_have_words():
    for text, words in [
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("*/7 * * * *", None),
        ("0 * * * *", "every hour at :00"),
        ("5,35 * * * *", "every hour at :05 and :35"),
        ("0 */6 * * *", "every 6 hours at :00 UTC"),
        ("30 4 * * *", "at 04:30 UTC"),
        ("0 9,17 * * 1-5", "at 09:00 and 17:00 on Monday to Friday UTC"),
        ("30 4 * * 1", "at 04:30 on Monday UTC"),
        ("30 4 * * 0,6", "at 04:30 on Saturday and Sunday UTC"),
        ("0 0 1 * *", "at 00:00 on day 1 of the month UTC"),
        ("0 0 1 1 *", "at 00:00 on January 1 UTC"),
        ("0 0 1 1,7 *", "at 00:00 on day 1 of January and July UTC"),
        ("*/10 8-17 * * *", "every 10 minutes from 08:00 to 17:59 UTC"),
        ("0 0 13 * 5", None),
        ("1,2,3,4,5 1,7 * * *", None),
    ]:
        assert describe_pattern(parse_pattern(text)) == words, text


def test_words_name_the_time_zone():
    assert describe_pattern(parse_pattern("0 4 * * *"), "Europe/Rome") == "at 04:00 Europe/Rome"


def test_a_pattern_is_formatted_as_fields_that_mean_the_same():
    for text in ("* * * * *", "*/5 3 1-7,9 2 1", "0 0 1 1 0"):
        assert parse_pattern(format_pattern(parse_pattern(text))) == parse_pattern(text)


def test_a_summary_survives_json_and_wrong_ones_are_left_out():
    summary = CronSummary.from_item(item("*/5 * * * *", "a"))

    assert CronSummary.from_json(summary.to_json()) == summary
    wrong_values: list[Any] = [None, 1, [], {}]
    for value in (*wrong_values, {"id": 1, "task": "a"}, {"id": "a", "task": "b", "tz": 1}):
        assert CronSummary.from_json(value) is None
    wrong = {"id": "a", "task": "b", "backfill": 1e300}
    assert CronSummary.from_json(wrong) is None


def test_the_summaries_of_a_worker_are_limited_in_size():
    many = summarize_items(item("* * * * *", f"item {number}") for number in range(1000))

    assert 10 < len(many) < 100
    assert len(str(many)) < 2 * MAX_SUMMARY_BYTES
