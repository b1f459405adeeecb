"""JobSpec and Job: checks of values, and decoding of rows."""

import json
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphile_worker import jobs
from graphile_worker.errors import JobSpecError, SchemaMissing, SchemaTooNew, SchemaTooOld
from graphile_worker.jobs import (
    EPOCH,
    MAX_DATETIME,
    MIN_DATETIME,
    JobKeyMode,
    JobSpec,
    parse_timestamp,
)
from tests.support.jobs import make_job


@pytest.mark.feature("F56")
def test_a_spec_needs_only_an_identifier():
    spec = JobSpec("resize")

    left_out = {field.name: getattr(spec, field.name) for field in fields(spec)}
    assert left_out.pop("identifier") == "resize"
    assert set(left_out.values()) == {None}


@pytest.mark.feature("F56")
def test_a_spec_is_immutable():
    spec = JobSpec("resize", priority=1)

    with pytest.raises(FrozenInstanceError):
        spec.priority = 2  # type: ignore[misc]  # what the test is about
    assert replace(spec, priority=2) == JobSpec("resize", priority=2)


@pytest.mark.feature("F56", "F243")
def test_a_replaced_spec_is_checked_again():
    with pytest.raises(JobSpecError):
        replace(JobSpec("resize"), job_key_mode="other")  # type: ignore[arg-type]


@pytest.mark.feature("F28", "F239")
@pytest.mark.parametrize(
    ("identifier", "code"),
    [
        (None, "23502"),
        ("", "GWBID"),
        ("x" * 129, "GWBID"),
        ("é" * 129, "GWBID"),
        ("a\x00b", "22021"),
        ("\ud800", "22021"),
        (7, "22023"),
        (b"x", "22023"),
    ],
)
def test_an_identifier_is_text_of_1_to_128_characters(identifier, code):
    assert _refusal(identifier=identifier) == ("identifier", identifier, code)


@pytest.mark.feature("F30", "F240")
@pytest.mark.parametrize(
    ("queue_name", "code"),
    [("q" * 129, "GWBQN"), ("\x00", "22021"), ("\udfff", "22021"), (1, "22023"), ([], "22023")],
)
def test_a_queue_name_is_text_of_at_most_128_characters(queue_name, code):
    assert _refusal(queue_name=queue_name) == ("queue_name", queue_name, code)


@pytest.mark.feature("F33", "F241")
@pytest.mark.parametrize(
    ("job_key", "code"),
    [("", "GWBJK"), ("k" * 513, "GWBJK"), ("\x00", "22021"), ("\ud800", "22021"), (1, "22023")],
)
def test_a_job_key_is_text_of_1_to_512_characters(job_key, code):
    assert _refusal(job_key=job_key) == ("job_key", job_key, code)


@pytest.mark.feature("F32", "F242")
@pytest.mark.parametrize(
    ("max_attempts", "code"),
    [
        (0, "GWBMA"),
        (-1, "GWBMA"),
        (-32768, "GWBMA"),
        (32768, "22003"),
        (40000, "22003"),
        (-40000, "22003"),
        (True, "22003"),
        (1.0, "22003"),
        ("3", "22003"),
        (Decimal(3), "22003"),
    ],
)
def test_max_attempts_is_an_int_from_1_to_32767(max_attempts, code):
    assert _refusal(max_attempts=max_attempts) == ("max_attempts", max_attempts, code)


@pytest.mark.feature("F34")
@pytest.mark.parametrize("priority", [32768, -32769, 2**70, False, 1.5, "1", [1]])
def test_a_priority_is_a_small_int(priority):
    assert _refusal(priority=priority) == ("priority", priority, "22003")


@pytest.mark.feature("F36", "F243")
@pytest.mark.parametrize("mode", ["", "Replace", "upsert", 1, [], None.__class__])
def test_a_job_key_mode_is_one_of_three(mode):
    assert _refusal(job_key_mode=mode) == ("job_key_mode", mode, "GWBKM")


@pytest.mark.feature("F31")
@pytest.mark.parametrize(
    ("run_at", "code"),
    [
        (datetime(2024, 1, 1), "22007"),
        (1_700_000_000, "22007"),
        (float("inf"), "22007"),
        ("2024-01-01T00:00:00Z", "22007"),
        (datetime(2024, 1, 1).date(), "22007"),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))), "22008"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=1))), "22008"),
        (timedelta.max, "22008"),
        (timedelta.min, "22008"),
    ],
)
def test_run_at_is_an_aware_datetime_or_a_timedelta_that_postgresql_can_store(run_at, code):
    assert _refusal(run_at=run_at) == ("run_at", run_at, code)


@pytest.mark.feature("F31")
def test_a_number_as_run_at_is_rejected_with_the_reason():
    with pytest.raises(JobSpecError, match="seconds or milliseconds"):
        JobSpec("resize", run_at=1_700_000_000)  # type: ignore[arg-type]  # what the test is about


@pytest.mark.feature("F35")
@pytest.mark.parametrize("flags", [[None], "flag", ["a", 1], ["\x00"], ["\ud800"], b"x", 7])
def test_flags_are_a_collection_of_text(flags):
    argument, _, code = _refusal(flags=flags)

    assert (argument, code[:3]) == ("flags", "220")


@pytest.mark.parametrize(
    "given",
    [
        {"identifier": "x" * 128},
        {"identifier": " "},
        {"queue_name": ""},
        {"queue_name": "q" * 128},
        {"job_key": "😀" * 512},
        {"max_attempts": 1},
        {"max_attempts": 32767},
        {"priority": -32768},
        {"priority": 32767},
        {"priority": 0},
        {"job_key_mode": "unsafe_dedupe"},
        {"job_key_mode": JobKeyMode.PRESERVE_RUN_AT},
        {"flags": []},
        {"flags": ("a", "a")},
        {"flags": {"a", ""}},
        {"run_at": datetime.max.replace(tzinfo=UTC)},
        {"run_at": datetime.min.replace(tzinfo=UTC)},
        {"run_at": timedelta(seconds=-1)},
        {"run_at": timedelta()},
    ],
)
def test_the_ends_of_every_range_are_accepted(given):
    JobSpec(**{"identifier": "resize", **given})


@pytest.mark.feature("F239", "F240", "F241", "F242", "F243")
def test_an_error_names_argument_value_reason_and_code():
    with pytest.raises(JobSpecError) as caught:
        JobSpec("resize", max_attempts=0)

    assert str(caught.value) == "max_attempts=0: must be at least 1 [GWBMA]"
    assert caught.value.reason == "must be at least 1"


def test_a_long_value_is_cut_in_the_message_but_whole_in_the_error():
    with pytest.raises(JobSpecError) as caught:
        JobSpec("x" * 10_000)

    assert len(str(caught.value)) < 200
    assert caught.value.value == "x" * 10_000


@pytest.mark.parametrize(
    "error",
    [
        JobSpecError("priority", 40000, "too big", "22003"),
        SchemaMissing("it's"),
        SchemaTooOld("jobs", 10),
        SchemaTooNew("jobs", 21),
    ],
)
def test_errors_can_be_pickled(error):
    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_a_pickled_error_omits_a_value_that_cannot_be_pickled():
    error = JobSpecError("payload", object(), "has no JSON form", "22P02")

    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_number_of_too_many_digits_is_rejected_without_its_digits():
    assert _refusal(priority=10**5000)[::2] == ("priority", "22003")


def test_the_message_of_a_bad_payload_never_quotes_it():
    error = JobSpecError("payload", {"password": "s3cr3t-canary"}, "too big", "54000")

    assert str(error) == "payload: too big [54000]"


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_timestamp_is_exact_to_the_microsecond(when):
    micros = (when - EPOCH) // timedelta(microseconds=1)
    seconds = f"{Decimal(micros) / 1_000_000:.6f}"

    assert parse_timestamp(seconds) == when


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        ("0.000000", EPOCH),
        ("Infinity", MAX_DATETIME),
        ("-Infinity", MIN_DATETIME),
        ("9224318015999.999999", MAX_DATETIME),
        ("-210866803200.000000", MIN_DATETIME),
        ("253402300800.000000", MAX_DATETIME),
        ("-62135596801.000000", MIN_DATETIME),
    ],
)
def test_timestamps_outside_the_calendar_are_clamped(epoch, expected):
    assert parse_timestamp(epoch) == expected
    assert parse_timestamp(epoch).tzinfo is UTC


@pytest.mark.feature("F47")
def test_a_job_shows_its_times_as_aware_datetimes():
    job = make_job(
        run_at="1.500000", created_at="2.250000", updated_at="3.000000", locked_at="4.000000"
    )

    assert job.run_at == datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)
    assert job.created_at == datetime(1970, 1, 1, 0, 0, 2, 250_000, UTC)
    assert job.updated_at == datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC)
    assert job.locked_at == datetime(1970, 1, 1, 0, 0, 4, tzinfo=UTC)
    assert make_job(locked_at=None).locked_at is None


@pytest.mark.feature("F35", "F47")
@pytest.mark.parametrize(
    ("stored", "flags"),
    [
        (None, frozenset()),
        ("{}", frozenset()),
        ('{"a": true, "b": true}', frozenset({"a", "b"})),
        ('{"a": false}', frozenset({"a"})),
        ('["a"]', frozenset()),
        ("null", frozenset()),
    ],
)
def test_flags_are_the_keys_of_the_stored_object(stored, flags):
    assert make_job(flags=stored).flags == flags


def test_a_payload_is_decoded_once_on_first_access(monkeypatch):
    loads = Mock(wraps=jobs._decode_json)
    monkeypatch.setattr(jobs, "_decode_json", loads)
    job = make_job(payload_text='{"a": [1]}')

    assert loads.call_count == 0
    assert job.payload == {"a": [1]}
    assert job.payload is job.payload
    assert loads.call_count == 1


@pytest.mark.parametrize("text", ["null", "false", "0", '""', "[]"])
def test_empty_payloads_are_decoded_too(text):
    assert make_job(payload_text=text).payload == json.loads(text)


@pytest.mark.parametrize("text", ["[" * 100_000 + "]" * 100_000, "1" * 5000, "nonsense"])
def test_a_payload_that_python_cannot_decode_raises_value_error_and_keeps_the_text(text):
    job = make_job(payload_text=text)

    with pytest.raises(ValueError):  # noqa: PT011 -- each reader words it differently
        _ = job.payload
    assert job.payload_text == text


def test_jobs_with_equal_rows_are_equal():
    job, same = make_job(payload_text="[1]"), make_job(payload_text="[1]")

    _ = job.payload

    assert job == same
    assert hash(job) == hash(same)
    assert {job, same} == {job}


@pytest.mark.parametrize("change", [{"id": 8}, {"revision": 1}, {"run_at": 1.0}, {"flags": "{}"}])
def test_jobs_with_different_rows_differ(change):
    assert make_job(**change) != make_job()


def test_a_job_is_never_equal_to_something_else():
    assert make_job() != 7
    assert make_job() != "job"


def test_the_repr_of_a_job_omits_the_payload():
    job = make_job(payload_text='"s3cr3t-canary"', attempts=1, max_attempts=25)

    assert repr(job) == "<Job 7 resize 1/25>"


def _refusal(**given: Any) -> tuple[str, object, str]:
    with pytest.raises(JobSpecError) as caught:
        JobSpec(**{"identifier": "resize", **given})
    error = caught.value
    assert f"[{error.code}]" in str(error)
    return error.argument, error.value, error.code
