"""Which jobs a test means: by task, by some keys of the payload, by what else is known of them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from graphile_worker._payloads import encode
from graphile_worker.errors import JobSpecError
from graphile_worker.jobs import Job
from graphile_worker.tasks import BatchTask, Signature, Task
from graphile_worker.testing.clock import TestClock

# A delay is counted from when the job was added, which was a moment ago.
RUN_AT_TOLERANCE = timedelta(seconds=10)

MAX_LISTED_JOBS = 20

# What a job can be known by, beside its task and the keys of its payload. A mode is of the adding.
MATCHABLE_FIELDS = (
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
IGNORED_FIELDS = ("job_key_mode",)


class JobMatcher:
    """What a test asks for; keywords that could never fit are refused."""

    def __init__(
        self,
        task: Task[..., Any] | None,
        identifier: str | None,
        options: Mapping[str, Any] | None,
        payload: Mapping[str, Any],
    ) -> None:
        self.identifier = identifier
        self.payload = dict(payload)
        self.fields = _collect_fields(task, options)
        if task is not None:
            _check_payload_keys(task, payload)

    def filter(self, jobs: Iterable[Job], clock: TestClock) -> list[Job]:
        return [job for job in jobs if self._matches(job, clock)]

    def __str__(self) -> str:
        words = [self.identifier or "any task"]
        words += [f"{key}={value!r}" for key, value in self.payload.items()]
        words += [f"having {fact}={value!r}" for fact, value in self.fields.items()]
        return ", ".join(words)

    def _matches(self, job: Job, clock: TestClock) -> bool:
        if self.identifier is not None and job.task_identifier != self.identifier:
            return False
        if not all(_field_matches(fact, value, job, clock) for fact, value in self.fields.items()):
            return False
        return not self.payload or _payload_contains(job.payload, self.payload)


def format_jobs(jobs: Sequence[Job]) -> str:
    """Jobs, as many as one wants to read, for the text of a failed assertion."""
    lines = [f"  {_format_job(job)}" for job in jobs[:MAX_LISTED_JOBS]]
    if len(jobs) > MAX_LISTED_JOBS:
        lines.append(f"  and {len(jobs) - MAX_LISTED_JOBS} more")
    return "\n".join(lines) or "  nothing"


def _format_job(job: Job) -> str:
    facts: dict[str, Any] = {
        "queue_name": job.queue_name,
        "job_key": job.key,
        "priority": job.priority or None,
        "attempts": job.attempts or None,
        "flags": sorted(job.flags) or None,
    }
    said = "".join(f", {name}={value!r}" for name, value in facts.items() if value is not None)
    return f"{job.task_identifier} {job.payload_text} at {job.run_at.isoformat()}{said}"


def _collect_fields(
    task: Task[..., Any] | None, options: Mapping[str, Any] | None
) -> dict[str, Any]:
    using = {} if task is None else task.job_options
    facts = {name: value for name, value in using.items() if name not in IGNORED_FIELDS}
    facts |= options or {}
    for name in facts:
        if name not in MATCHABLE_FIELDS:
            raise TypeError(f"a job has no {name!r}: options takes {', '.join(MATCHABLE_FIELDS)}")
    return facts


def _check_payload_keys(task: Task[..., Any], payload: Mapping[str, Any]) -> None:
    """Refuse a keyword that no job of this task has: to refute it would always succeed."""
    signature = task.signature
    if isinstance(task, BatchTask) and payload:
        raise TypeError(f"{task.identifier} takes a list: say options={{'payload': […]}}")
    if not isinstance(signature, Signature) or signature.keys is None:
        return
    for key in payload:
        if key not in signature.keys:
            known = ", ".join(signature.keys) or "none"
            raise TypeError(f"{task.identifier} has no parameter {key!r}: it has {known}")


def _field_matches(field: str, expected: Any, job: Job, clock: TestClock) -> bool:
    if field == "payload":
        return _equals_as_json(job.payload, expected)
    if field == "flags":
        return job.flags == frozenset(expected or ())
    found = getattr(job, "key" if field == "job_key" else field)
    if isinstance(expected, timedelta) and isinstance(found, datetime):
        off = abs(found - clock.resolve(expected))
        return off <= (timedelta(0) if clock.is_frozen else RUN_AT_TOLERANCE)
    return bool(found == expected)


def _payload_contains(payload: object, expected: Mapping[str, Any]) -> bool:
    if not isinstance(payload, dict):
        return False
    return all(key in payload and _equals_as_json(payload[key], expected[key]) for key in expected)


def _equals_as_json(found: object, expected: Any) -> bool:
    """Equal, or equal to what the expected value is in JSON."""
    if found == expected:
        return True
    try:
        text = encode([expected])
    except JobSpecError:
        return False
    assert text is not None
    return bool([found] == json.loads(text))
