"""The grammar of filters: what each term means, what is refused and where, and back to text."""

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
    parse_filter,
)
from graphile_worker.ops.states import JobState

MINUTE = timedelta(minutes=1)
AUGUST = datetime(2026, 8, 1, tzinfo=UTC)


def words(*texts: str) -> tuple[TextPattern, ...]:
    """Names; a star stands for anything."""
    return tuple(TextPattern(tuple(text.split("*"))) for text in texts)


def only(text: str) -> Term:
    """The one term of a text."""
    (term,) = parse_filter(text).terms
    return term


# Fields


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("task:send_email", Term(FilterField.TASK, words("send_email"))),
        ("task:send_email,render_pdf", Term(FilterField.TASK, words("send_email", "render_pdf"))),
        ("-task:x", Term(FilterField.TASK, words("x"), is_negated=True)),
        ("task:send_*", Term(FilterField.TASK, words("send_*"))),
        ('task:"a b, c"', Term(FilterField.TASK, words("a b, c"))),
        ("queue:billing", Term(FilterField.QUEUE, words("billing"))),
        ("queue:none", Term(FilterField.QUEUE, (Absent(),))),
        ('queue:"none"', Term(FilterField.QUEUE, words("none"))),
        ("queue:billing,none", Term(FilterField.QUEUE, (*words("billing"), Absent()))),
        ("key:pdf:42", Term(FilterField.KEY, words("pdf:42"))),
        ("key:pdf:*", Term(FilterField.KEY, words("pdf:*"))),
        (r"key:pdf\*", Term(FilterField.KEY, (TextPattern(("pdf*",)),))),
        ("worker:pool-3fa*", Term(FilterField.WORKER, words("pool-3fa*"))),
        ('error:"upstream timeout"', Term(FilterField.ERROR, words("upstream timeout"))),
        ("flag:x,y", Term(FilterField.FLAG, words("x", "y"))),
        ("flag:a*", Term(FilterField.FLAG, (TextPattern(("a*",)),))),
    ],
)
def test_names(text, term):
    assert only(text) == term


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
def test_states_and_other_words_for_them(text, states):
    assert only(f"state:{text}") == Term(FilterField.STATE, states)


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
    assert only(f"{field}:{text}") == Term(field, (Range(low, high),))


def test_of_several_numbers_one_must_fit():
    assert only("id:1,5..7") == Term(FilterField.ID, (Range(1, 1), Range(5, 7)))


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
    assert only(f"age:{text}") == Term(FilterField.AGE, (Range(low, high),))


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
def test_moments(field, text, low, high):
    assert only(f"{field}:{text}") == Term(field, (Range(low, high),))


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
    assert only(text) == Term(FilterField.PAYLOAD, tuple(map(JsonValue, values)), path=path)


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("88412", Term(FilterField.ID, (Range(88412, 88412),))),
        ("1,2", Term(FilterField.ID, (Range(1, 1), Range(2, 2)))),
        ('"88412"', Term(FilterField.TEXT, words("88412"))),
        ("timeout", Term(FilterField.TEXT, words("timeout"))),
        ("-timeout", Term(FilterField.TEXT, words("timeout"), is_negated=True)),
        ('"http://x"', Term(FilterField.TEXT, words("http://x"))),
        ("-5", Term(FilterField.ID, (Range(5, 5),), is_negated=True)),
    ],
)
def test_bare_words(text, term):
    assert only(text) == term


def test_terms_have_blanks_between_them_and_all_must_hold():
    found = parse_filter("  task:a\tstate:failed\n -error:b ")

    assert [term.field for term in found.terms] == [
        FilterField.TASK,
        FilterField.STATE,
        FilterField.ERROR,
    ]


@pytest.mark.parametrize("text", ["", "  \n"])
def test_without_terms_every_job_is_meant(text):
    assert parse_filter(text) == Filter()


def test_filters_can_be_put_together():
    assert parse_filter("task:a state:failed") == parse_filter("task:a") & filter_by_states(
        JobState.FAILED
    )
    assert filter_by_ids([1, 2]) == parse_filter("id:1,2")
    assert filter_by_keys(["a*"]) == parse_filter(r"key:a\*")


def test_a_pattern_becomes_one_of_like_and_nothing_else_in_it_is_special():
    assert TextPattern(("50%_\\", "x")).like_pattern == r"50\%\_\\%x"


# Refusals


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("age:>banana", 5, "a time"),
        ("age:10m", 5, "with < or > before it"),
        ("age:>99999999999d", 5, "a time"),
        ("task:a age:>banana", 12, "a time"),
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
        ('task:"a"b', 9, "a blank or a comma"),
        ("task:a\\", 8, "something after the backslash"),
        ("payload:x", 8, "a key, as in payload.user.id:42"),
        ("payload.:x", 9, "a key of the payload"),
        ("payload.a", 10, "a colon"),
        ("task.a:x", 5, "a colon"),
        ("task:a\x00", 7, "text that PostgreSQL can hold"),
        ("task:\ud800", 6, "text that PostgreSQL can hold"),
    ],
)
def test_a_refusal_says_where_and_what_may_stand_there(text, column, expected):
    with pytest.raises(FilterError) as caught:
        parse_filter(text)

    assert caught.value.column == column
    assert expected in caught.value.expected


def test_a_refusal_is_one_sentence_and_travels():
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


def within(bounds):
    ends = st.tuples(bounds, bounds).filter(lambda pair: pair[0] != pair[1])
    one = bounds.map(lambda it: Range(it, None)) | bounds.map(lambda it: Range(None, it))
    return one | ends.map(lambda pair: Range(*pair))


def some(values):
    return st.lists(values, min_size=1, max_size=3, unique=True).map(tuple)


VALUES: dict[FilterField, Any] = {
    **dict.fromkeys(
        (FilterField.TASK, FilterField.WORKER, FilterField.ERROR, FilterField.TEXT), patterns
    ),
    **dict.fromkeys((FilterField.QUEUE, FilterField.KEY), patterns | st.just(Absent())),
    **dict.fromkeys((FilterField.RUN, FilterField.CREATED), within(moments)),
    **dict.fromkeys(
        (FilterField.ID, FilterField.ATTEMPTS, FilterField.PRIORITY),
        within(integers) | integers.map(lambda it: Range(it, it)),
    ),
    FilterField.STATE: st.sampled_from(JobState),
    FilterField.AGE: within(spans),
    FilterField.FLAG: texts.map(lambda text: TextPattern((text,))),
}

terms = st.one_of(
    [st.builds(Term, st.just(name), some(values), st.booleans()) for name, values in VALUES.items()]
)


@given(st.lists(terms, max_size=4).map(lambda them: Filter(tuple(them))))
def test_a_filter_is_written_as_it_can_be_read(found):
    assert parse_filter(str(found)) == found


@given(st.lists(texts, min_size=1, max_size=3))
def test_so_is_a_path_into_payloads(path):
    written = str(Term(FilterField.PAYLOAD, (JsonValue('"x"'), JsonValue("1")), path=tuple(path)))

    assert only(written).path == tuple(path)


@given(st.text())
@example("payload.")
@example('"')
@example("-\\")
@example("id:..")
@example("age:>1.999999d")
def test_any_text_is_read_or_refused_at_a_place_in_it(text):
    assert place_of_refusal(text) in range(1, len(text) + 2)


def place_of_refusal(text: str) -> int:
    """The column; what can be read can be written and read again, and has none to complain of."""
    try:
        found = parse_filter(text)
    except FilterError as error:
        return error.column
    assert parse_filter(str(found)) == found
    return 1
