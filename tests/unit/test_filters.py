"""The grammar of filters: what each term means, what is refused and where, and back to text."""

import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from graphile_worker.administration.filters import (
    Field,
    Filter,
    Json,
    Nothing,
    Term,
    Within,
    Words,
    in_states,
    parse,
    with_ids,
    with_keys,
)
from graphile_worker.administration.states import State
from graphile_worker.errors import FilterError

MINUTE = timedelta(minutes=1)
AUGUST = datetime(2026, 8, 1, tzinfo=UTC)


def words(*texts: str) -> tuple[Words, ...]:
    """Names; a star stands for anything."""
    return tuple(Words(tuple(text.split("*"))) for text in texts)


def only(text: str) -> Term:
    """The one term of a text."""
    (term,) = parse(text).terms
    return term


# Fields


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("task:send_email", Term(Field.TASK, words("send_email"))),
        ("task:send_email,render_pdf", Term(Field.TASK, words("send_email", "render_pdf"))),
        ("-task:x", Term(Field.TASK, words("x"), is_negated=True)),
        ("task:send_*", Term(Field.TASK, words("send_*"))),
        ('task:"a b, c"', Term(Field.TASK, words("a b, c"))),
        ("queue:billing", Term(Field.QUEUE, words("billing"))),
        ("queue:none", Term(Field.QUEUE, (Nothing(),))),
        ('queue:"none"', Term(Field.QUEUE, words("none"))),
        ("queue:billing,none", Term(Field.QUEUE, (*words("billing"), Nothing()))),
        ("key:pdf:42", Term(Field.KEY, words("pdf:42"))),
        ("key:pdf:*", Term(Field.KEY, words("pdf:*"))),
        (r"key:pdf\*", Term(Field.KEY, (Words(("pdf*",)),))),
        ("worker:pool-3fa*", Term(Field.WORKER, words("pool-3fa*"))),
        ('error:"upstream timeout"', Term(Field.ERROR, words("upstream timeout"))),
        ("flag:x,y", Term(Field.FLAG, words("x", "y"))),
        ("flag:a*", Term(Field.FLAG, (Words(("a*",)),))),
    ],
)
def test_names(text, term):
    assert only(text) == term


@pytest.mark.parametrize(
    ("text", "states"),
    [
        *((each.value, (each,)) for each in State),
        ("locked", (State.STALE, State.RUNNING)),
        ("permafailed", (State.FAILED,)),
        ("failed,retrying", (State.FAILED, State.RETRYING)),
        ("locked,running", (State.STALE, State.RUNNING)),
    ],
)
def test_states_and_other_words_for_them(text, states):
    assert only(f"state:{text}") == Term(Field.STATE, states)


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
@pytest.mark.parametrize("field", [Field.ID, Field.ATTEMPTS, Field.PRIORITY])
def test_numbers(field, text, low, high):
    assert only(f"{field}:{text}") == Term(field, (Within(low, high),))


def test_of_several_numbers_one_must_fit():
    assert only("id:1,5..7") == Term(Field.ID, (Within(1, 1), Within(5, 7)))


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
    assert only(f"age:{text}") == Term(Field.AGE, (Within(low, high),))


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
@pytest.mark.parametrize("field", [Field.RUN, Field.CREATED])
def test_moments(field, text, low, high):
    assert only(f"{field}:{text}") == Term(field, (Within(low, high),))


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
    assert only(text) == Term(Field.PAYLOAD, tuple(map(Json, values)), path=path)


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("88412", Term(Field.ID, (Within(88412, 88412),))),
        ("1,2", Term(Field.ID, (Within(1, 1), Within(2, 2)))),
        ('"88412"', Term(Field.TEXT, words("88412"))),
        ("timeout", Term(Field.TEXT, words("timeout"))),
        ("-timeout", Term(Field.TEXT, words("timeout"), is_negated=True)),
        ('"http://x"', Term(Field.TEXT, words("http://x"))),
        ("-5", Term(Field.ID, (Within(5, 5),), is_negated=True)),
    ],
)
def test_bare_words(text, term):
    assert only(text) == term


def test_terms_have_blanks_between_them_and_all_must_hold():
    found = parse("  task:a\tstate:failed\n -error:b ")

    assert [term.field for term in found.terms] == [Field.TASK, Field.STATE, Field.ERROR]


@pytest.mark.parametrize("text", ["", "  \n"])
def test_without_terms_every_job_is_meant(text):
    assert parse(text) == Filter()


def test_filters_can_be_put_together():
    assert parse("task:a state:failed") == parse("task:a") & in_states(State.FAILED)
    assert with_ids([1, 2]) == parse("id:1,2")
    assert with_keys(["a*"]) == parse(r"key:a\*")


def test_a_pattern_becomes_one_of_like_and_nothing_else_in_it_is_special():
    assert Words(("50%_\\", "x")).like == r"50\%\_\\%x"


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
        parse(text)

    assert caught.value.column == column
    assert expected in caught.value.expected


def test_a_refusal_is_one_sentence_and_travels():
    with pytest.raises(
        FilterError, match=r"filter, column 5: expected .*, got '>banana'"
    ) as caught:
        parse("age:>banana")

    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


# Back to text

texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1)
names = st.lists(st.text(st.sampled_from('ab*\\",: -.%_ü名\n')), min_size=1, max_size=3).filter(
    lambda parts: parts != [""]
)
patterns = names.map(lambda parts: Words(tuple(parts)))
spans = st.timedeltas(timedelta(0), timedelta(days=36_500))
moments = st.datetimes(
    datetime(1, 1, 3), datetime(9999, 12, 30), timezones=st.just(UTC)
) | st.timedeltas(timedelta(days=-36_500), timedelta(days=36_500))
integers = st.integers(-(2**62), 2**62)


def within(bounds):
    ends = st.tuples(bounds, bounds).filter(lambda pair: pair[0] != pair[1])
    one = bounds.map(lambda it: Within(it, None)) | bounds.map(lambda it: Within(None, it))
    return one | ends.map(lambda pair: Within(*pair))


def some(values):
    return st.lists(values, min_size=1, max_size=3, unique=True).map(tuple)


VALUES: dict[Field, Any] = {
    **dict.fromkeys((Field.TASK, Field.WORKER, Field.ERROR, Field.TEXT), patterns),
    **dict.fromkeys((Field.QUEUE, Field.KEY), patterns | st.just(Nothing())),
    **dict.fromkeys((Field.RUN, Field.CREATED), within(moments)),
    **dict.fromkeys(
        (Field.ID, Field.ATTEMPTS, Field.PRIORITY),
        within(integers) | integers.map(lambda it: Within(it, it)),
    ),
    Field.STATE: st.sampled_from(State),
    Field.AGE: within(spans),
    Field.FLAG: texts.map(lambda text: Words((text,))),
}

terms = st.one_of(
    [st.builds(Term, st.just(name), some(values), st.booleans()) for name, values in VALUES.items()]
)


@given(st.lists(terms, max_size=4).map(lambda them: Filter(tuple(them))))
def test_a_filter_is_written_as_it_can_be_read(found):
    assert parse(str(found)) == found


@given(st.lists(texts, min_size=1, max_size=3))
def test_so_is_a_path_into_payloads(path):
    written = str(Term(Field.PAYLOAD, (Json('"x"'), Json("1")), path=tuple(path)))

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
        found = parse(text)
    except FilterError as error:
        return error.column
    assert parse(str(found)) == found
    return 1
