"""Which jobs a test means: by task, by some keys of the payload, by what else is known of them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from graphile_worker.errors import JobSpecError
from graphile_worker.jobs import Job
from graphile_worker.payloads import encode
from graphile_worker.tasks import BatchTask, Signature, Task
from graphile_worker.testing.clock import TestClock

# A delay is counted from when the job was added, which was a moment ago.
A_MOMENT = timedelta(seconds=10)

MOST = 20

# What a job can be known by, beside its task and the keys of its payload. A mode is of the adding.
FACTS = (
    "attempts",
    "created_at",
    "flags",
    "id",
    "job_key",
    "last_error",
    "max_attempts",
    "payload",
    "priority",
    "queue_name",
    "run_at",
)
NO_FACTS = ("job_key_mode",)


class Wanted:
    """What a test asks for; keywords that could never fit are refused."""

    def __init__(
        self,
        task: Task[..., Any] | None,
        identifier: str | None,
        having: Mapping[str, Any] | None,
        payload: Mapping[str, Any],
    ) -> None:
        self.identifier = identifier
        self.payload = dict(payload)
        self.facts = _facts(task, having)
        if task is not None:
            _check_keys(task, payload)

    def among(self, jobs: Iterable[Job], clock: TestClock) -> list[Job]:
        return [job for job in jobs if self._fits(job, clock)]

    def __str__(self) -> str:
        words = [self.identifier or "any task"]
        words += [f"{key}={value!r}" for key, value in self.payload.items()]
        words += [f"having {fact}={value!r}" for fact, value in self.facts.items()]
        return ", ".join(words)

    def _fits(self, job: Job, clock: TestClock) -> bool:
        if self.identifier is not None and job.task_identifier != self.identifier:
            return False
        if not all(_is(fact, value, job, clock) for fact, value in self.facts.items()):
            return False
        return not self.payload or _holds(job.payload, self.payload)


def listed(jobs: Sequence[Job]) -> str:
    """Jobs, as many as one wants to read, for the text of a failed assertion."""
    lines = [f"  {_line(job)}" for job in jobs[:MOST]]
    if len(jobs) > MOST:
        lines.append(f"  and {len(jobs) - MOST} more")
    return "\n".join(lines) or "  nothing"


def _line(job: Job) -> str:
    facts: dict[str, Any] = {
        "queue_name": job.queue_name,
        "job_key": job.key,
        "priority": job.priority or None,
        "attempts": job.attempts or None,
        "flags": sorted(job.flags) or None,
    }
    said = "".join(f", {name}={value!r}" for name, value in facts.items() if value is not None)
    return f"{job.task_identifier} {job.payload_text} at {job.run_at.isoformat()}{said}"


def _facts(task: Task[..., Any] | None, having: Mapping[str, Any] | None) -> dict[str, Any]:
    using = {} if task is None else task.given
    facts = {name: value for name, value in using.items() if name not in NO_FACTS}
    facts |= having or {}
    for name in facts:
        if name not in FACTS:
            raise TypeError(f"a job has no {name!r}: having takes {', '.join(FACTS)}")
    return facts


def _check_keys(task: Task[..., Any], payload: Mapping[str, Any]) -> None:
    """Refuse a keyword that no job of this task has: to refute it would always succeed."""
    signature = task.signature
    if isinstance(task, BatchTask) and payload:
        raise TypeError(f"{task.identifier} takes a list: say having={{'payload': […]}}")
    if not isinstance(signature, Signature) or signature.keys is None:
        return
    for key in payload:
        if key not in signature.keys:
            known = ", ".join(signature.keys) or "none"
            raise TypeError(f"{task.identifier} has no parameter {key!r}: it has {known}")


def _is(fact: str, expected: Any, job: Job, clock: TestClock) -> bool:
    if fact == "payload":
        return _alike(job.payload, expected)
    if fact == "flags":
        return job.flags == frozenset(expected or ())
    found = getattr(job, "key" if fact == "job_key" else fact)
    if isinstance(expected, timedelta) and isinstance(found, datetime):
        off = abs(found - clock.at(expected))
        return off <= (timedelta(0) if clock.stands else A_MOMENT)
    return bool(found == expected)


def _holds(payload: object, expected: Mapping[str, Any]) -> bool:
    if not isinstance(payload, dict):
        return False
    return all(key in payload and _alike(payload[key], expected[key]) for key in expected)


def _alike(found: object, expected: Any) -> bool:
    """Equal, or equal to what the expected value is in JSON."""
    if found == expected:
        return True
    try:
        text = encode([expected])
    except JobSpecError:
        return False
    assert text is not None
    return bool([found] == json.loads(text))
