"""The grammar of filters: the meaning of each term, errors with their columns, and writing."""

import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from graphile_worker.errors import FilterError
from graphile_worker.ops.filters import (
    Absent,
    Filter,
    FilterField,
    JsonValue,
    Range,
    Term,
    TextPattern,
    filter_by_ids,
    filter_by_keys,
    filter_by_states,
    parse_ended_filter,
    parse_filter,
)
from graphile_worker.ops.states import JobState
from graphile_worker.results import JobStatusState

MINUTE = timedelta(minutes=1)
AUGUST = datetime(2026, 8, 1, tzinfo=UTC)


def patterns_of(*texts: str) -> tuple[TextPattern, ...]:
    return tuple(TextPattern(tuple(text.split("*"))) for text in texts)


def parse_term(text: str) -> Term:
    (term,) = parse_filter(text).terms
    return term


# Fields


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("task:send_email", Term(FilterField.TASK, patterns_of("send_email"))),
        (
            "task:send_email,render_pdf",
            Term(FilterField.TASK, patterns_of("send_email", "render_pdf")),
        ),
        ("-task:x", Term(FilterField.TASK, patterns_of("x"), is_negated=True)),
        ("task:send_*", Term(FilterField.TASK, patterns_of("send_*"))),
        ('task:"a b, c"', Term(FilterField.TASK, patterns_of("a b, c"))),
        ("queue:billing", Term(FilterField.QUEUE, patterns_of("billing"))),
        ("queue:none", Term(FilterField.QUEUE, (Absent(),))),
        ('queue:"none"', Term(FilterField.QUEUE, patterns_of("none"))),
        ("queue:billing,none", Term(FilterField.QUEUE, (*patterns_of("billing"), Absent()))),
        ("key:pdf:42", Term(FilterField.KEY, patterns_of("pdf:42"))),
        ("key:pdf:*", Term(FilterField.KEY, patterns_of("pdf:*"))),
        (r"key:pdf\*", Term(FilterField.KEY, (TextPattern(("pdf*",)),))),
        ("worker:pool-3fa*", Term(FilterField.WORKER, patterns_of("pool-3fa*"))),
        ('error:"upstream timeout"', Term(FilterField.ERROR, patterns_of("upstream timeout"))),
        ("flag:x,y", Term(FilterField.FLAG, patterns_of("x", "y"))),
        ("flag:a*", Term(FilterField.FLAG, (TextPattern(("a*",)),))),
    ],
)
def test_names(text, term):
    assert parse_term(text) == term


@pytest.mark.parametrize(
    ("text", "states"),
    [
        *((each.value, (each,)) for each in JobState),
        ("locked", (JobState.STALE, JobState.RUNNING)),
        ("permafailed", (JobState.FAILED,)),
        ("failed,retrying", (JobState.FAILED, JobState.RETRYING)),
        ("locked,running", (JobState.STALE, JobState.RUNNING)),
    ],
)
def test_states_and_their_aliases(text, states):
    assert parse_term(f"state:{text}") == Term(FilterField.STATE, states)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("5", 5, 5),
        ("=5", 5, 5),
        (">5", 6, None),
        (">=5", 5, None),
        ("<5", None, 4),
        ("<=5", None, 5),
        ("<0", None, -1),
        ("-7..-3", -7, -3),
        ("5..", 5, None),
        ("..5", None, 5),
        ("88412..88420", 88412, 88420),
    ],
)
@pytest.mark.parametrize("field", [FilterField.ID, FilterField.ATTEMPTS, FilterField.PRIORITY])
def test_numbers(field, text, low, high):
    assert parse_term(f"{field}:{text}") == Term(field, (Range(low, high),))


def test_several_numbers_are_alternatives():
    assert parse_term("id:1,5..7") == Term(FilterField.ID, (Range(1, 1), Range(5, 7)))


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        (">10m", 10 * MINUTE, None),
        (">=10m", 10 * MINUTE, None),
        ("<1h30m", None, 90 * MINUTE),
        ("1m..2m", MINUTE, 2 * MINUTE),
    ],
)
def test_ages(text, low, high):
    assert parse_term(f"age:{text}") == Term(FilterField.AGE, (Range(low, high),))


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("<1h", None, 60 * MINUTE),
        (">-10m", -10 * MINUTE, None),
        (">2026-08-01", AUGUST, None),
        (">2026-08-01T10:00Z", AUGUST.replace(hour=10), None),
        (">2026-08-01T10:00+02:00", AUGUST.replace(hour=8), None),
        ("2026-08-01", AUGUST, AUGUST + timedelta(days=1, microseconds=-1)),
        ("2026-08-01..2026-08-02", AUGUST, AUGUST + timedelta(days=2, microseconds=-1)),
        ("<=2026-08-01", None, AUGUST + timedelta(days=1, microseconds=-1)),
        ("<2026-08-01", None, AUGUST),
        ("2026-08-01..-1m", AUGUST, -MINUTE),
    ],
)
@pytest.mark.parametrize("field", [FilterField.RUN, FilterField.CREATED])
def test_times(field, text, low, high):
    assert parse_term(f"{field}:{text}") == Term(field, (Range(low, high),))


@pytest.mark.parametrize(
    ("text", "path", "values"),
    [
        ("payload.user.id:42", ("user", "id"), ("42", '"42"')),
        ('payload.user.id:"42"', ("user", "id"), ('"42"',)),
        ("payload.ok:true", ("ok",), ("true", '"true"')),
        ("payload.name:Ada", ("name",), ('"Ada"',)),
        ("payload.name:Ada,Grace", ("name",), ('"Ada"', '"Grace"')),
        ("payload.star:*", ("star",), ('"*"',)),
        ('payload."a.b:c":1', ("a.b:c",), ("1", '"1"')),
        ('payload.name:""', ("name",), ('""',)),
        ("payload.much:1e999999999", ("much",), ('"1e999999999"',)),
    ],
)
def test_payloads(text, path, values):
    assert parse_term(text) == Term(FilterField.PAYLOAD, tuple(map(JsonValue, values)), path=path)


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("88412", Term(FilterField.ID, (Range(88412, 88412),))),
        ("1,2", Term(FilterField.ID, (Range(1, 1), Range(2, 2)))),
        ('"88412"', Term(FilterField.TEXT, patterns_of("88412"))),
        ("timeout", Term(FilterField.TEXT, patterns_of("timeout"))),
        ("-timeout", Term(FilterField.TEXT, patterns_of("timeout"), is_negated=True)),
        ('"http://x"', Term(FilterField.TEXT, patterns_of("http://x"))),
        ("-5", Term(FilterField.ID, (Range(5, 5),), is_negated=True)),
    ],
)
def test_bare_words(text, term):
    assert parse_term(text) == term


def test_terms_are_separated_by_spaces():
    found = parse_filter("  task:a\tstate:failed\n -error:b ")

    assert [term.field for term in found.terms] == [
        FilterField.TASK,
        FilterField.STATE,
        FilterField.ERROR,
    ]


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_text_is_a_filter_without_terms(text):
    assert parse_filter(text) == Filter()


def test_filters_can_be_combined():
    assert parse_filter("task:a state:failed") == parse_filter("task:a") & filter_by_states(
        JobState.FAILED
    )
    assert filter_by_ids([1, 2]) == parse_filter("id:1,2")
    assert filter_by_keys(["a*"]) == parse_filter(r"key:a\*")


def test_only_wildcards_are_special_in_a_like_pattern():
    assert TextPattern(("50%_\\", "x")).like_pattern == r"50\%\_\\%x"


# Errors


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("age:>banana", 5, "a duration"),
        ("age:10m", 5, "with < or > before it"),
        ("age:>99999999999d", 5, "a duration"),
        ("task:a age:>banana", 12, "a duration"),
        ("state:borked", 7, "one of stale, running, failed"),
        ("attempts:many", 10, "a number"),
        ("attempts:..", 10, "a number"),
        ("id:5,x", 6, "a number"),
        ("id:99999999999999999999", 4, "a number"),
        ("created:>yesterday", 9, "a date"),
        ("created:>2026-13-01", 9, "a date"),
        ("created:1h", 9, "a date"),
        ("color:red", 1, "one of task, queue"),
        ("-color:red", 2, "one of task, queue"),
        ("http://x", 1, "or the text in quotes"),
        ("task:", 6, "a value"),
        ("task:a,", 8, "a value"),
        ('task:""', 6, "a text"),
        ("-", 2, "a value"),
        ('task:"open', 6, 'a " at the end'),
        ('task:"a"b', 9, "a space or a comma"),
        ("task:a\\", 8, "a character after the backslash"),
        ("payload:x", 8, "a key, as in payload.user.id:42"),
        ("payload.:x", 9, "a key of the payload"),
        ("payload.a", 10, "a colon"),
        ("task.a:x", 5, "a colon"),
        ("task:a\x00", 7, "text that PostgreSQL can store"),
        ("task:\ud800", 6, "text that PostgreSQL can store"),
    ],
)
def test_an_error_has_the_column_and_what_is_expected_there(text, column, expected):
    with pytest.raises(FilterError) as caught:
        parse_filter(text)

    assert caught.value.column == column
    assert expected in caught.value.expected


def test_an_error_is_one_sentence_and_can_be_pickled():
    with pytest.raises(
        FilterError, match=r"filter, column 5: expected .*, got '>banana'"
    ) as caught:
        parse_filter("age:>banana")

    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


# Back to text

texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1)
names = st.lists(st.text(st.sampled_from('ab*\\",: -.%_ü名\n')), min_size=1, max_size=3).filter(
    lambda parts: parts != [""]
)
patterns = names.map(lambda parts: TextPattern(tuple(parts)))
spans = st.timedeltas(timedelta(0), timedelta(days=36_500))
moments = st.datetimes(
    datetime(1, 1, 3), datetime(9999, 12, 30), timezones=st.just(UTC)
) | st.timedeltas(timedelta(days=-36_500), timedelta(days=36_500))
integers = st.integers(-(2**62), 2**62)


def ranges_of(bounds):
    ends = st.tuples(bounds, bounds).filter(lambda pair: pair[0] != pair[1])
    one = bounds.map(lambda bound: Range(bound, None)) | bounds.map(
        lambda bound: Range(None, bound)
    )
    return one | ends.map(lambda pair: Range(*pair))


def tuples_of(values):
    return st.lists(values, min_size=1, max_size=3, unique=True).map(tuple)


VALUES: dict[FilterField, Any] = {
    **dict.fromkeys(
        (FilterField.TASK, FilterField.WORKER, FilterField.ERROR, FilterField.TEXT), patterns
    ),
    **dict.fromkeys((FilterField.QUEUE, FilterField.KEY), patterns | st.just(Absent())),
    **dict.fromkeys((FilterField.RUN, FilterField.CREATED), ranges_of(moments)),
    **dict.fromkeys(
        (FilterField.ID, FilterField.ATTEMPTS, FilterField.PRIORITY),
        ranges_of(integers) | integers.map(lambda bound: Range(bound, bound)),
    ),
    FilterField.STATE: st.sampled_from(JobState),
    FilterField.AGE: ranges_of(spans),
    FilterField.FLAG: texts.map(lambda text: TextPattern((text,))),
}

terms = st.one_of(
    [
        st.builds(Term, st.just(name), tuples_of(values), st.booleans())
        for name, values in VALUES.items()
    ]
)


@given(st.lists(terms, max_size=4).map(lambda found: Filter(tuple(found))))
def test_a_filter_written_as_text_parses_to_the_same_filter(found):
    assert parse_filter(str(found)) == found


@given(st.lists(texts, min_size=1, max_size=3))
def test_a_payload_path_written_as_text_parses_to_the_same_path(path):
    written = str(Term(FilterField.PAYLOAD, (JsonValue('"x"'), JsonValue("1")), path=tuple(path)))

    assert parse_term(written).path == tuple(path)


@given(st.text())
@example("payload.")
@example('"')
@example("-\\")
@example("id:..")
@example("age:>1.999999d")
def test_any_text_is_parsed_or_rejected_at_a_column(text):
    assert get_error_column(text) in range(1, len(text) + 2)


def get_error_column(text: str) -> int:
    """The column of the error, or 1 for a filter, which must survive writing and parsing."""
    try:
        found = parse_filter(text)
    except FilterError as error:
        return error.column
    assert parse_filter(str(found)) == found
    return 1


# Ended jobs


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("state:succeeded", Term(FilterField.STATE, (JobStatusState.SUCCEEDED,))),
        ("state:permafailed", Term(FilterField.STATE, (JobStatusState.FAILED,))),
        ("finished:<1m", Term(FilterField.FINISHED, (Range(-MINUTE, None),))),
        ("finished:>1m", Term(FilterField.FINISHED, (Range(None, -MINUTE),))),
        ("finished:>-1m", Term(FilterField.FINISHED, (Range(-MINUTE, None),))),
        ("finished:1m..2m", Term(FilterField.FINISHED, (Range(-2 * MINUTE, -MINUTE),))),
        (
            "finished:>2026-08-01T00:00Z",
            Term(FilterField.FINISHED, (Range(AUGUST, None),)),
        ),
        ("id:1..10000", Term(FilterField.ID, (Range(1, 10_000),))),
        ("4711", Term(FilterField.ID, (Range(4711, 4711),))),
    ],
)
def test_terms_of_ended_jobs(text, term):
    parsed = parse_ended_filter(text)

    assert parsed == Filter((term,))
    assert parse_ended_filter(str(parsed)) == parsed


def test_terms_without_meaning_for_ended_jobs_are_rejected_at_their_column():
    for text, column, expected in (
        ("task:a queue:b", 8, "one of task, state, id, finished, error for ended jobs"),
        ("payload.a:1", 1, "one of task, state, id, finished, error for ended jobs"),
        ("state:running", 7, "succeeded or failed"),
        ("id:>5", 4, "a range of at most 10,000 ids"),
        ("id:1..10001", 4, "a range of at most 10,000 ids"),
        ("finished:-1h..2h", 10, "<1h, 1h..2h"),
        ("finished:1h", 10, "<1h, 1h..2h"),
    ):
        with pytest.raises(FilterError) as caught:
            parse_ended_filter(text)
        assert caught.value.column == column
        assert expected in caught.value.expected


def test_finished_is_a_field_of_ended_jobs_only():
    with pytest.raises(FilterError, match=r"expected one of task, queue, .*, got 'finished:<1h'"):
        parse_filter("finished:<1h")
