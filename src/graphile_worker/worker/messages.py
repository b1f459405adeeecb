"""Messages between a worker and the processes of its tasks: JSON, its length before it."""

import asyncio
import json
import socket
import struct
from datetime import datetime, timedelta
from typing import Any

from graphile_worker.error_text import error_text
from graphile_worker.errors import TaskProcessError
from graphile_worker.jobs import Job, When
from graphile_worker.retries import Discard, Retry, Snooze
from graphile_worker.worker.retrying import NextAttempt

Message = dict[str, Any]

LENGTH = struct.Struct("!I")


def packed(message: Message) -> bytes:
    data = json.dumps(message).encode()
    return LENGTH.pack(len(data)) + data


async def read_message(reader: asyncio.StreamReader) -> Message:
    """The next message; raises EOFError when there will be none."""
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    message: Message = json.loads(await reader.readexactly(length))
    return message


def receive(line: socket.socket) -> Message:
    """`read_message` for blocking code."""
    (length,) = LENGTH.unpack(_received(line, LENGTH.size))
    message: Message = json.loads(_received(line, length))
    return message


def _received(line: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        chunk = line.recv(length - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


# Jobs


def job_fields(job: Job) -> list[Any]:
    """A job as JSON carries it, in the order of its arguments."""
    return [
        job.id,
        job.task_identifier,
        job.queue_name,
        job.payload_text,
        job.priority,
        job._run_at,
        job.attempts,
        job.max_attempts,
        job.last_error,
        job._created_at,
        job._updated_at,
        job.key,
        job._locked_at,
        job.locked_by,
        job.revision,
        job._flags,
    ]


# Errors


def error_fields(error: BaseException) -> Message:
    """What an error says, as JSON carries it."""
    try:
        message = str(error)
    except Exception as broken:
        message = f"(its text could not be made: {type(broken).__name__})"
    return {"kind": type(error).__name__, "message": message, "text": error_text(error)}


def read_error(fields: Message) -> TaskProcessError:
    """The error again, by its words; a log shows where it happened there."""
    error = TaskProcessError(**fields)
    error.add_note(error.text)
    return error


# How a job goes on


def signal_fields(signal: Snooze | Retry | Discard) -> Message:
    delay = None if isinstance(signal, Discard) else when_text(signal.delay)
    return {"signal": type(signal).__name__, "delay": delay, "reason": signal.reason}


def read_signal(fields: Message) -> Snooze | Retry | Discard:
    delay, reason = read_when(fields["delay"]), fields["reason"]
    if fields["signal"] == Discard.__name__:
        return Discard(reason)
    if fields["signal"] == Snooze.__name__ and delay is not None:
        return Snooze(delay, reason=reason)
    return Retry(delay, reason=reason)


def next_fields(attempt: NextAttempt) -> Message:
    return {"when": when_text(attempt.when), "give_up": attempt.give_up}


def read_next(fields: Message) -> NextAttempt:
    return NextAttempt(read_when(fields["when"]), fields["give_up"])


def when_text(when: When | None) -> str | None:
    """A moment as ISO 8601, a duration as microseconds."""
    if isinstance(when, timedelta):
        return str(when // timedelta(microseconds=1))
    return None if when is None else when.isoformat()


def read_when(text: str | None) -> When | None:
    if text is None:
        return None
    if "T" in text:
        return datetime.fromisoformat(text)
    return timedelta(microseconds=int(text))
