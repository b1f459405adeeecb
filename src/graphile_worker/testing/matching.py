"""Match jobs by task, by keys of the payload and by other fields."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from graphile_worker._payloads import encode
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.testing import get_enqueued_jobs
from graphile_worker._sql.queries.unique_keys import (
    UniqueKeysAccess,
    check_unique_keys,
    get_unique_job,
)
from graphile_worker._sql.query import Plan
from graphile_worker._support.text import suggest
from graphile_worker.errors import JobSpecError
from graphile_worker.jobs import Job
from graphile_worker.tasks import BatchTask, Signature, Task
from graphile_worker.testing.clock import TestClock

# A delay counts from the time at which the job was added, shortly before the assertion.
RUN_AT_TOLERANCE = timedelta(seconds=10)

MAX_LISTED_JOBS = 20

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
    "unique",
)


class JobMatcher:
    """Select the jobs that an assertion is about."""

    def __init__(
        self,
        task: Task[..., Any] | None,
        identifier: str | None,
        options: Mapping[str, Any] | None,
        payload: Mapping[str, Any],
    ) -> None:
        self.identifier = identifier
        self._payload = payload
        self._fields = dict({} if task is None else task.job_options)
        # What a job does not store: the mode of its key, and the length of its window.
        self._fields.pop("job_key_mode", None)
        self._fields.pop("unique_for", None)
        self._fields |= options or {}
        for name in self._fields:
            if name not in MATCHABLE_FIELDS:
                known = ", ".join(MATCHABLE_FIELDS)
                hint = suggest(name, MATCHABLE_FIELDS)
                raise TypeError(f"a job has no option {name!r}{hint} Known options: {known}")
        if task is not None:
            _check_payload_keys(task, payload)

    def plan_find(self, schemas: Schemas, clock: TestClock) -> Plan[list[Job]]:
        """Return the enqueued jobs that match."""
        jobs: list[Job] = yield get_enqueued_jobs(self.identifier)
        if (key := self._fields.get("unique")) is not None:
            access: UniqueKeysAccess = yield check_unique_keys(schemas)
            job_id = (yield get_unique_job(key)) if access.is_usable else None
            jobs = [job for job in jobs if job.id == job_id]
        return [job for job in jobs if self._matches(job, clock)]

    def __str__(self) -> str:
        parts = [self.identifier or "any task"]
        parts += [f"{key}={value!r}" for key, value in self._payload.items()]
        parts += [f"with {name}={value!r}" for name, value in self._fields.items()]
        return ", ".join(parts)

    def _matches(self, job: Job, clock: TestClock) -> bool:
        if self.identifier is not None and job.task_identifier != self.identifier:
            return False
        if not all(_field_matches(*field, job, clock) for field in self._fields.items()):
            return False
        return not self._payload or _payload_contains(job.payload, self._payload)


def format_jobs(jobs: Sequence[Job]) -> str:
    """Format jobs for the message of a failed assertion."""
    lines = [f"  {_format_job(job)}" for job in jobs[:MAX_LISTED_JOBS]]
    if len(jobs) > MAX_LISTED_JOBS:
        lines.append(f"  and {len(jobs) - MAX_LISTED_JOBS} more")
    return "\n".join(lines) or "  none"


def _format_job(job: Job) -> str:
    fields: dict[str, Any] = {
        "queue_name": job.queue_name,
        "job_key": job.key,
        "priority": job.priority or None,
        "attempts": job.attempts or None,
        "flags": sorted(job.flags) or None,
    }
    listed = "".join(f", {name}={value!r}" for name, value in fields.items() if value is not None)
    return f"{job.task_identifier} {job.payload_text} at {job.run_at.isoformat()}{listed}"


def _check_payload_keys(task: Task[..., Any], payload: Mapping[str, Any]) -> None:
    # With a key that jobs of the task never have, assert_not_enqueued would always succeed.
    signature = task.signature
    if isinstance(task, BatchTask) and payload:
        raise TypeError(f"{task.identifier} takes a list: pass options={{'payload': […]}}")
    if not isinstance(signature, Signature) or signature.keys is None:
        return
    for key in payload:
        if key not in signature.keys:
            known = ", ".join(signature.keys) or "none"
            hint = suggest(key, signature.keys)
            raise TypeError(
                f"{task.identifier} has no parameter {key!r}{hint} Known parameters: {known}"
            )


def _field_matches(field: str, expected: Any, job: Job, clock: TestClock) -> bool:
    if field == "payload":
        return _equals_as_json(job.payload, expected)
    if field == "unique":
        # Compared by `plan_find`: the table of unique keys names the job.
        return True
    if field == "flags":
        return job.flags == frozenset(expected or ())
    actual = getattr(job, "key" if field == "job_key" else field)
    if isinstance(expected, timedelta) and isinstance(actual, datetime):
        difference = abs(actual - clock.resolve(expected))
        return difference <= (timedelta(0) if clock.is_frozen else RUN_AT_TOLERANCE)
    return bool(actual == expected)


def _payload_contains(payload: object, expected: Mapping[str, Any]) -> bool:
    if not isinstance(payload, dict):
        return False
    return all(key in payload and _equals_as_json(payload[key], expected[key]) for key in expected)


def _equals_as_json(actual: object, expected: Any) -> bool:
    if actual == expected:
        return True
    try:
        text = encode([expected])
    except JobSpecError:
        return False
    assert text is not None
    return bool([actual] == json.loads(text))
