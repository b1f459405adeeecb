"""Add a job for a person: its payload as JSON text, checked by its task, and audited."""

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graphile_worker._payloads import Mismatch, encode
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.add import MAX_ADD_ATTEMPTS, raise_job_spec_error
from graphile_worker._sql.plans.audit import AuditLabel, plan_audited
from graphile_worker._sql.plans.unique import plan_add_windows, plan_require_unique_keys
from graphile_worker._sql.queries.audit import AuditAction
from graphile_worker._sql.queries.jobs import add_job, read_job
from graphile_worker._sql.query import Plan
from graphile_worker.errors import ConfigurationError, JobSpecError, SchemaError
from graphile_worker.jobs import Job, JobSpec
from graphile_worker.tasks import Task
from graphile_worker.tasks.batch import BatchTask
from graphile_worker.tasks.signatures import Signature


@dataclass(frozen=True, slots=True)
class PayloadProblem:
    """What is wrong with a payload, and where: `items[2].width`, or empty for the whole."""

    path: str
    message: str


@dataclass(frozen=True, slots=True)
class TaskParameter:
    """A parameter of a task: its name, its annotation and its default as text."""

    name: str
    type: str | None
    default: str | None
    is_required: bool


@dataclass(frozen=True, slots=True)
class AddedJob:
    """The job that was added, and whether its key changed an existing one instead."""

    id: int
    is_new: bool
    is_duplicate: bool = False
    """Whether nothing was added, because the window of its unique key is open."""


def find_payload_problems(text: str | None, task: Task[..., Any] | None) -> list[PayloadProblem]:
    """Check a payload as a worker will.

    Args:
        text: The payload as JSON, or None for a job without one.
        task: The task, or None if it is not known here: then any JSON fits.

    Returns:
        The problems, none if the payload fits.
    """
    try:
        payload = {} if text is None else parse_payload(text)
        encode(payload)
    except JobSpecError as error:
        return [PayloadProblem("", error.reason)]
    except ValueError as error:
        return [PayloadProblem("", f"not JSON: {error}")]
    except RecursionError:
        return [PayloadProblem("", "nested too deeply")]
    if task is None or not isinstance(task.signature, Signature):
        return []
    try:
        task.signature.check_payload(payload)
    except Mismatch as mismatch:
        return [PayloadProblem(mismatch.path, mismatch.reason)]
    except ConfigurationError as error:
        return [PayloadProblem("", str(error))]
    return []


def list_unknown_keys(text: str | None, task: Task[..., Any] | None) -> list[str]:
    """List the keys of a payload that the task ignores, for example misspelled ones.

    Args:
        text: The payload as JSON.
        task: The task, or None if it is not known here.
    """
    if text is None or task is None or not isinstance(task.signature, Signature):
        return []
    keys = task.signature.keys
    try:
        payload = parse_payload(text)
    except (ValueError, RecursionError):
        return []
    if keys is None or not isinstance(payload, dict):
        return []
    return [key for key in payload if key not in keys and not key.startswith("_")]


def parse_payload(text: str) -> Any:
    """Parse a payload.

    Args:
        text: JSON.

    Raises:
        ValueError: It is not JSON. Python's NaN and Infinity are not.
    """
    return json.loads(text, parse_constant=_reject_constant)


def plan_add_for_person(
    spec: JobSpec, payload_text: str | None, schemas: Schemas, *, actor: str | None = None
) -> Plan[AddedJob]:
    """Add a job with its payload exactly as a person wrote it, and record that in the audit.

    Args:
        spec: The job. Its payload does not count.
        payload_text: The payload as JSON, or None for an empty object.
        schemas: The schemas of the queue.
        actor: Who adds it, for the audit.

    Returns:
        A plan for the job.

    Raises:
        JobSpecError: The database rejects a value.
        SchemaError: The companion schema has no unique keys, or this role may not use them.
    """
    label = AuditLabel(
        action=AuditAction.JOBS_ADD, actor=actor, filter=f"task:{spec.identifier}", note=_note(spec)
    )

    def plan_add() -> Plan[Job]:
        if spec.unique is not None:
            yield from plan_require_unique_keys(schemas)
            [job] = yield from plan_add_windows([spec], [payload_text], schemas)
            return job
        for _ in range(MAX_ADD_ATTEMPTS):
            rows = yield add_job(spec, payload_text)
            if rows:
                return read_job(rows[0])
        raise JobSpecError("job_key", spec.job_key, "stayed locked by other sessions", "GWNOR")

    try:
        job = yield from plan_audited(plan_add, _list_added_ids, schemas, label)
    except (JobSpecError, SchemaError):
        raise
    except Exception as error:
        raise_job_spec_error(error, schemas, spec)
    is_new = job.revision == 0 and not job.is_duplicate
    return AddedJob(job.id, is_new=is_new, is_duplicate=job.is_duplicate)


def _list_added_ids(job: Job) -> list[int]:
    return [] if job.is_duplicate else [job.id]


def describe_parameters(task: Task[..., Any]) -> list[TaskParameter] | None:
    """Describe the parameters of a task, for a form.

    Args:
        task: The task.

    Returns:
        None if its payload is not an object of parameters.
    """
    signature = task.signature
    if not isinstance(signature, Signature) or signature.takes_whole_payload:
        return None
    if isinstance(task, BatchTask):
        return None
    return [_describe_parameter(each) for each in signature.parameters]


def _describe_parameter(parameter: inspect.Parameter) -> TaskParameter:
    empty = inspect.Parameter.empty
    has_annotation = parameter.annotation is not empty
    is_rest = parameter.kind is inspect.Parameter.VAR_KEYWORD
    default = None
    if parameter.default is not empty:
        try:
            default = "null" if parameter.default is None else encode(parameter.default)
        except JobSpecError:
            default = repr(parameter.default)
    return TaskParameter(
        name=f"**{parameter.name}" if is_rest else parameter.name,
        type=inspect.formatannotation(parameter.annotation) if has_annotation else None,
        default=default,
        is_required=parameter.default is empty and not is_rest,
    )


def _note(spec: JobSpec) -> str | None:
    values: Mapping[str, Any] = {
        "queue": spec.queue_name,
        "key": spec.job_key,
        "unique": spec.unique,
    }
    return " ".join(f"{name}={value}" for name, value in values.items() if value) or None


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
