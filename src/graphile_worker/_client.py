"""BaseClient: what the async and the blocking client share."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from graphile_worker._db.external_connections import OpenTransaction, find_source
from graphile_worker._metrics.definitions import AddMode
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.plans.add import (
    encode_payloads,
    has_windows,
    plan_add_job,
    plan_add_jobs,
)
from graphile_worker._sql.plans.insert import DirectInserts
from graphile_worker._sql.plans.status import EndedJob, EndedJobFinder
from graphile_worker._sql.query import Plan
from graphile_worker._support.clock import Clock, SystemClock
from graphile_worker._support.lazy_dataclass import LazyDataclass
from graphile_worker.errors import (
    JobFailedError,
    OpenTransactionError,
    ResultError,
    ResultUnknownError,
)
from graphile_worker.events import AddingJobs
from graphile_worker.hooks import Hooks
from graphile_worker.jobs import Job, JobSpec, build_spec
from graphile_worker.options import (
    DEFAULT_NOTIFY_INTERVAL,
    NotifyMode,
    WorkerOptions,
    default_schema,
)
from graphile_worker.results import JobStatusState, Retention
from graphile_worker.tasks import ReadResult, TaskRouter, find_retentions

if TYPE_CHECKING:
    from graphile_worker._announcer import Announcer, Send


class CallerTransaction(LazyDataclass):
    """The transaction in which a caller waits for a job.

    `added` is the job if the transaction added or updated it. None if the caller joined the
    transaction by `using_connection`.
    """

    transaction: OpenTransaction
    added: Job | None = None

    @property
    def connection(self) -> object:
        return self.transaction.connection


class BaseClient:
    """The settings of a client, and the specs and plans that it builds."""

    # Whether all calls share one transaction, in which no worker runs jobs: in tests.
    _shares_transaction = False
    _announcer: "Announcer | None" = None

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
        actor: str | None = None,
        notify: NotifyMode = "on_commit",
        notify_interval: timedelta = DEFAULT_NOTIFY_INTERVAL,
    ) -> None:
        # This raises an error if a value is not valid.
        WorkerOptions(notify=notify, notify_interval=notify_interval)
        self._schemas = Schemas.from_names(schema or default_schema(), ext_schema)
        self._use_local_time = use_local_time
        self._max_payload_bytes = max_payload_bytes
        self._hooks = hooks or Hooks()
        self._clock = clock or SystemClock()
        self._tasks = tasks
        self._ended_jobs = EndedJobFinder(self._schemas)
        self._actor = actor
        # In a shared transaction, which is never committed, a notification reaches no worker.
        self._notifies_on_commit = notify == "on_commit" or self._shares_transaction
        self._inserts = DirectInserts(notify=self._notifies_on_commit)
        self._callers_inserts: WeakKeyDictionary[Any, DirectInserts] = WeakKeyDictionary()
        self._open(database, prepared_statements=prepared_statements)
        if notify == "coalesced" and not self._shares_transaction:
            # Imported here, so that other programs start without it.
            from graphile_worker._announcer import Announcer

            send = self._build_send(database, prepared_statements=prepared_statements)
            self._announcer = Announcer(send, notify_interval)

    def _open(self, source: object, *, prepared_statements: bool) -> None:
        raise NotImplementedError

    def _build_send(self, source: object, *, prepared_statements: bool) -> "Send":
        """Return a function that notifies workers, for the thread of the announcer."""
        raise NotImplementedError

    def _build_spec(self, identifier: str, payload: Any, options: Mapping[str, Any]) -> JobSpec:
        return self._apply_task_options(build_spec(identifier, payload, options))

    def _build_operation(self, specs: Iterable[JobSpec]) -> AddingJobs:
        return AddingJobs(specs=[self._set_run_at(spec) for spec in specs])

    def _plan_add_job(self, adding: AddingJobs, conn: object) -> Plan[Job]:
        if has_windows(adding.specs):
            return self._plan_add_unique_job(adding, conn)
        return plan_add_job(
            adding.specs[0],
            self._schemas,
            max_bytes=self._max_payload_bytes,
            inserts=self._find_inserts(conn),
        )

    def _plan_add_jobs(self, adding: AddingJobs, conn: object) -> Plan[list[Job]]:
        if has_windows(adding.specs):
            return self._plan_add_unique_jobs(adding, conn)
        return plan_add_jobs(
            adding.specs,
            self._schemas,
            max_bytes=self._max_payload_bytes,
            all_or_nothing=conn is None,
            inserts=self._find_inserts(conn),
        )

    def _check_specs(self, specs: Sequence[JobSpec]) -> None:
        """Raise JobSpecError if the jobs cannot be added together."""
        encode_payloads(specs, max_bytes=self._max_payload_bytes)

    def _plan_add_unique_job(self, adding: AddingJobs, conn: object) -> Plan[Job]:
        [job] = yield from self._plan_add_unique_jobs(adding, conn)
        return job

    def _plan_add_unique_jobs(self, adding: AddingJobs, conn: object) -> Plan[list[Job]]:
        # Imported here, so that other programs start without it.
        from graphile_worker._sql.plans.unique import plan_add_unique_jobs

        return plan_add_unique_jobs(
            adding.specs,
            self._schemas,
            max_bytes=self._max_payload_bytes,
            inserts=self._find_inserts(conn),
            decided_at=self._get_local_time(),
        )

    def _get_local_time(self) -> datetime | None:
        """Return the time that decides about unique windows. None if the database's clock does."""
        return self._clock.now() if self._use_local_time else None

    def _find_inserts(self, conn: object) -> DirectInserts | None:
        if conn is None:
            return self._inserts
        try:
            return self._callers_inserts.setdefault(
                find_source(conn),
                # The announcer notifies the workers of this client's database.
                DirectInserts(
                    is_callers=True,
                    notify=self._notifies_on_commit
                    or (self._announcer is not None and self._is_foreign(conn)),
                ),
            )
        except TypeError:
            # It has no weak references: for example not a connection, which is rejected later.
            return None

    def _handle_added(self, adding: AddingJobs, mode: AddMode, conn: object) -> None:
        """Count the jobs that were added, and announce them to workers."""
        added = adding.specs
        if has_windows(added):
            pairs = zip(adding.specs, adding.jobs, strict=True)
            added = [spec for spec, job in pairs if not job.is_duplicate]
        if (recorder := self._hooks._recorder) is not None:
            recorder.record_added((spec.identifier for spec in added), mode)
        if self._announcer is not None and added and not self._is_foreign(conn):
            transaction = OpenTransaction.find(self._find_connection(conn))
            self._announcer.announce(len(added), transaction)

    def _is_foreign(self, conn: object) -> bool:
        """Return whether the caller's connection leads to another database than this client's."""
        return False

    def _find_connection(self, conn: object) -> object:
        """Return the connection of the caller that a call joins, or None."""
        return conn

    def _get_retentions(self) -> list[Retention]:
        """Return what the tasks of this client keep of their ended jobs."""
        if self._tasks is None:
            return []
        return list(find_retentions(self._tasks.tasks(), self._tasks).values())

    def _needs_look(self, caller: CallerTransaction | None) -> bool:
        """Return whether the caller may not wait, but may read the result if the job ended."""
        return self._shares_transaction or (caller is not None and caller.transaction.is_open())

    def _is_final(self, ended: EndedJob | None, caller: CallerTransaction | None) -> bool:
        """Return whether a look outside of the caller's transaction found what became of a job."""
        if ended is None:
            return False
        return caller is None or ended.state is not JobStatusState.UNKNOWN

    def _build_transaction_error(
        self, job_id: int, caller: CallerTransaction | None
    ) -> OpenTransactionError:
        if self._shares_transaction:
            hint = "run it with drain() before you read its result"
        elif caller is not None and caller.added is not None:
            hint = "commit the transaction that adds it before you wait for its result"
        else:
            hint = "end the transaction of using_connection before you wait for its result"
        return OpenTransactionError(f"job {job_id} has not ended: {hint}")

    def _read_result(self, ended: EndedJob, read_result: ReadResult | None) -> Any:
        """Return the result of a job that ended, or raise what became of it."""
        if ended.state is JobStatusState.FAILED:
            raise JobFailedError(ended.job_id, ended.error)
        if ended.detail is not None:
            raise ResultUnknownError(ended.job_id, ended.detail)
        if ended.result is None:
            raise ResultUnknownError(ended.job_id, "succeeded, and its task keeps no results")
        read = read_result or self._find_result_reader(ended.task_identifier)
        try:
            return read(ended.result)
        except (ValueError, RecursionError) as error:
            raise ResultError(
                f"the stored result of job {ended.job_id} cannot be read: {error}"
            ) from error

    def _find_result_reader(self, identifier: str | None) -> ReadResult:
        known = self._tasks is not None and identifier is not None
        task = self._tasks.find(identifier) if known else None  # type: ignore[union-attr, arg-type]
        return json.loads if task is None else task.signature.read_result

    def _apply_task_options(self, spec: JobSpec) -> JobSpec:
        if self._tasks is None or not isinstance(spec, JobSpec):
            return spec
        return self._tasks.completed(spec)

    def _set_run_at(self, spec: JobSpec) -> JobSpec:
        if self._use_local_time and isinstance(spec, JobSpec) and spec.run_at is None:
            return replace(spec, run_at=self._clock.now())
        return spec
