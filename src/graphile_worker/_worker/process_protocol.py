"""Messages between a worker and its task processes: JSON with its length as a prefix."""

import asyncio
import json
import socket
import struct
from datetime import datetime, timedelta
from typing import Any

from graphile_worker._support.error_format import format_error
from graphile_worker._worker.retry_decision import NextAttempt
from graphile_worker.errors import TaskProcessError
from graphile_worker.jobs import Job, RunAt
from graphile_worker.retries import Discard, Retry, Snooze

Message = dict[str, Any]

LENGTH_PREFIX = struct.Struct("!I")


def encode_message(message: Message) -> bytes:
    data = json.dumps(message).encode()
    return LENGTH_PREFIX.pack(len(data)) + data


async def read_message(reader: asyncio.StreamReader) -> Message:
    """Read the next message.

    Raises:
        EOFError: The other process closed the socket.
    """
    (length,) = LENGTH_PREFIX.unpack(await reader.readexactly(LENGTH_PREFIX.size))
    message: Message = json.loads(await reader.readexactly(length))
    return message


def receive_message(sock: socket.socket) -> Message:
    """Read the next message as `read_message` does, without an event loop."""
    (length,) = LENGTH_PREFIX.unpack(_receive_bytes(sock, LENGTH_PREFIX.size))
    message: Message = json.loads(_receive_bytes(sock, length))
    return message


def _receive_bytes(sock: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        chunk = sock.recv(length - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


# Jobs


def encode_job(job: Job) -> list[Any]:
    """Return the fields of a job for JSON, in the order of the arguments of `Job`."""
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


def encode_error(error: BaseException) -> Message:
    """Return the name, the message and the text of an error for JSON."""
    try:
        message = str(error)
    except Exception as broken:
        message = f"(its message raised {type(broken).__name__})"
    return {"kind": type(error).__name__, "message": message, "text": format_error(error)}


def read_error(fields: Message) -> TaskProcessError:
    """Return the error with its text as a note, so that logs show the traceback of the process."""
    error = TaskProcessError(**fields)
    error.add_note(error.text)
    return error


# Requested outcomes and next attempts


def encode_outcome_exception(exception: Snooze | Retry | Discard) -> Message:
    """Return the outcome that a task requested for JSON. A subclass becomes its base class."""
    requested = next(kind for kind in (Snooze, Retry, Discard) if isinstance(exception, kind))
    delay = None if isinstance(exception, Discard) else format_when(exception.delay)
    reason = None if exception.reason is None else str(exception.reason)
    return {"requested": requested.__name__, "delay": delay, "reason": reason}


def read_outcome_exception(fields: Message) -> Snooze | Retry | Discard:
    delay, reason = read_when(fields["delay"]), fields["reason"]
    if fields["requested"] == Discard.__name__:
        return Discard(reason)
    if fields["requested"] == Snooze.__name__ and delay is not None:
        return Snooze(delay, reason=reason)
    return Retry(delay, reason=reason)


def encode_next_attempt(attempt: NextAttempt) -> Message:
    return {"when": format_when(attempt.when), "is_permanent": attempt.is_permanent}


def read_next_attempt(fields: Message) -> NextAttempt:
    return NextAttempt(read_when(fields["when"]), fields["is_permanent"])


def format_when(when: RunAt | None) -> str | None:
    """Format a time as ISO 8601, a duration as microseconds."""
    if isinstance(when, timedelta):
        return str(when // timedelta(microseconds=1))
    return None if when is None else when.isoformat()


def read_when(text: str | None) -> RunAt | None:
    if text is None:
        return None
    if "T" in text:
        return datetime.fromisoformat(text)
    return timedelta(microseconds=int(text))
