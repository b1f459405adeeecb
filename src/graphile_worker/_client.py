"""BaseClient: what the async and the blocking client share."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from graphile_worker._metrics.definitions import AddMode
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.add import plan_add_job, plan_add_jobs
from graphile_worker._sql.query import Plan
from graphile_worker._support.clock import Clock, SystemClock
from graphile_worker.events import AddingJobs
from graphile_worker.hooks import Hooks
from graphile_worker.jobs import Job, JobSpec, build_spec
from graphile_worker.options import default_schema
from graphile_worker.tasks import TaskRouter


class BaseClient:
    """The settings of a client, and the specs and plans that it builds."""

    def __init__(
        self,
        database: object = None,
        *,
        schema: str | None = None,
        ext_schema: str | None = None,
        use_local_time: bool = False,
        max_payload_bytes: int | None = None,
        prepared_statements: bool = True,
        hooks: Hooks | None = None,
        clock: Clock | None = None,
        tasks: TaskRouter[Any] | None = None,
    ) -> None:
        self._schemas = Schemas.from_names(schema or default_schema(), ext_schema)
        self._use_local_time = use_local_time
        self._max_payload_bytes = max_payload_bytes
        self._hooks = hooks or Hooks()
        self._clock = clock or SystemClock()
        self._tasks = tasks
        self._open(database, prepared_statements=prepared_statements)

    def _open(self, database: object, *, prepared_statements: bool) -> None:
        raise NotImplementedError

    def _build_spec(self, identifier: str, payload: Any, options: Mapping[str, Any]) -> JobSpec:
        return self._apply_task_options(build_spec(identifier, payload, options))

    def _build_operation(self, specs: Iterable[JobSpec]) -> AddingJobs:
        return AddingJobs(specs=[self._set_run_at(spec) for spec in specs])

    def _plan_add_job(self, adding: AddingJobs) -> Plan[Job]:
        return plan_add_job(adding.specs[0], self._schemas, max_bytes=self._max_payload_bytes)

    def _plan_add_jobs(self, adding: AddingJobs, conn: object) -> Plan[list[Job]]:
        return plan_add_jobs(
            adding.specs,
            self._schemas,
            max_bytes=self._max_payload_bytes,
            all_or_nothing=conn is None,
        )

    def _record_added(self, adding: AddingJobs, mode: AddMode) -> None:
        if (recorder := self._hooks._recorder) is not None:
            recorder.record_added((spec.identifier for spec in adding.specs), mode)

    def _apply_task_options(self, spec: JobSpec) -> JobSpec:
        if self._tasks is None or not isinstance(spec, JobSpec):
            return spec
        return self._tasks.completed(spec)

    def _set_run_at(self, spec: JobSpec) -> JobSpec:
        if self._use_local_time and isinstance(spec, JobSpec) and spec.run_at is None:
            return replace(spec, run_at=self._clock.now())
        return spec
