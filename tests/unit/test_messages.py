"""What travels between a worker and the processes of its tasks comes over as it was."""

import asyncio
import json
import socket
from datetime import UTC, datetime, timedelta

import pytest

from graphile_worker import Discard, Job, Retry, Snooze
from graphile_worker.error_text import error_line, error_text
from graphile_worker.worker import messages
from graphile_worker.worker.retrying import NextAttempt
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
    assert messages.read_when(messages.when_text(when)) == when
    attempt = NextAttempt(when, give_up=when is None)
    assert messages.read_next(json.loads(json.dumps(messages.next_fields(attempt)))) == attempt


@pytest.mark.parametrize(
    "signal",
    [
        Retry(),
        Retry(timedelta(hours=1), reason="busy"),
        Snooze(datetime(2030, 1, 1, tzinfo=UTC)),
        Snooze(timedelta(0), reason="soon"),
        Discard("gone"),
    ],
)
def test_signals_are_the_same_afterwards(signal):
    read = messages.read_signal(json.loads(json.dumps(messages.signal_fields(signal))))

    assert type(read) is type(signal)
    assert vars(read) == vars(signal)
    assert str(read) == str(signal)


def test_a_job_is_the_same_afterwards():
    job = make_job(payload_text='{"a": "é"}', flags='{"x": true}', key="k", attempts=3)

    assert Job(*json.loads(json.dumps(messages.job_fields(job)))) == job


def test_an_error_brings_its_name_its_message_and_its_text():
    with pytest.raises(LookupError) as caught:
        raise LookupError("not there")

    error = caught.value
    told = messages.read_error(json.loads(json.dumps(messages.error_fields(error))))
    assert error_text(told) == error_text(error)
    assert error_line(told) == error_line(error) == "LookupError: not there"


def test_an_error_that_cannot_say_anything_is_told_all_the_same():
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert messages.error_fields(Mute())["kind"] == "Mute"


async def test_messages_come_whole_and_in_order_and_their_end_is_heard():
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    sent = [{"at": at, "text": "é" * at * 10_000} for at in range(5)]
    for message in sent:
        writer.write(messages.packed(message))

    got = await asyncio.to_thread(lambda: [messages.receive(theirs) for _ in sent])
    theirs.sendall(messages.packed({"n": 1}))
    theirs.close()

    assert got == sent
    assert await messages.read_message(reader) == {"n": 1}
    with pytest.raises(EOFError):
        await messages.read_message(reader)
    writer.close()
