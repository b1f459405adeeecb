"""Messages between a worker and its task processes keep their values."""

import asyncio
import json
import socket
from datetime import UTC, datetime, timedelta

import pytest

from graphile_worker import Discard, Job, Retry, Snooze
from graphile_worker._support.error_format import format_error, format_error_line
from graphile_worker._worker import process_protocol
from graphile_worker._worker.retry_decision import NextAttempt
from tests.support.jobs import make_job

WHENS = [
    None,
    timedelta(0),
    timedelta(days=-3, microseconds=1),
    timedelta(days=10_000),
    datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
]


@pytest.mark.parametrize("when", WHENS)
def test_moments_and_durations_are_exact(when):
    assert process_protocol.read_when(process_protocol.format_when(when)) == when
    attempt = NextAttempt(when, is_permanent=when is None)
    assert (
        process_protocol.read_next_attempt(
            json.loads(json.dumps(process_protocol.encode_next_attempt(attempt)))
        )
        == attempt
    )


@pytest.mark.parametrize(
    "exception",
    [
        Retry(),
        Retry(timedelta(hours=1), reason="busy"),
        Snooze(datetime(2030, 1, 1, tzinfo=UTC)),
        Snooze(timedelta(0), reason="soon"),
        Discard("gone"),
    ],
)
def test_signals_are_the_same_afterwards(exception):
    read = process_protocol.read_outcome_exception(
        json.loads(json.dumps(process_protocol.encode_outcome_exception(exception)))
    )

    assert type(read) is type(exception)
    assert vars(read) == vars(exception)
    assert str(read) == str(exception)


@pytest.mark.parametrize("kind", [Retry, Snooze, Discard])
def test_a_subclass_of_an_outcome_exception_becomes_its_base_class(kind):
    class Special(kind):  # type: ignore[misc,valid-type]
        """A worker may not have this class."""

    exception = Special(reason="x") if kind is Discard else Special(timedelta(1), reason="x")

    read = process_protocol.read_outcome_exception(
        process_protocol.encode_outcome_exception(exception)
    )

    assert type(read) is kind
    assert vars(read) == vars(exception)


def test_a_job_is_the_same_afterwards():
    job = make_job(payload_text='{"a": "é"}', flags='{"x": true}', key="k", attempts=3)

    assert Job(*json.loads(json.dumps(process_protocol.encode_job(job)))) == job


def test_an_error_brings_its_name_its_message_and_its_text():
    with pytest.raises(LookupError) as caught:
        raise LookupError("not there")

    error = caught.value
    read_back = process_protocol.read_error(
        json.loads(json.dumps(process_protocol.encode_error(error)))
    )
    assert format_error(read_back) == format_error(error)
    assert format_error_line(read_back) == format_error_line(error) == "LookupError: not there"


def test_an_error_without_a_message_is_sent():
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert process_protocol.encode_error(Mute())["kind"] == "Mute"


async def test_messages_arrive_whole_and_in_order_until_the_end():
    near, far = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=near)
    sent = [{"at": at, "text": "é" * at * 10_000} for at in range(5)]
    for message in sent:
        writer.write(process_protocol.encode_message(message))

    received = await asyncio.to_thread(
        lambda: [process_protocol.receive_message(far) for _ in sent]
    )
    far.sendall(process_protocol.encode_message({"n": 1}))
    far.close()

    assert received == sent
    assert await process_protocol.read_message(reader) == {"n": 1}
    with pytest.raises(EOFError):
        await process_protocol.read_message(reader)
    writer.close()
