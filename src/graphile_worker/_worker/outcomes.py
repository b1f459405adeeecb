"""Outcomes: how a job can end in this process.

One is created for every job, so they are not frozen, which would take three times as long.
"""

from dataclasses import dataclass

from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._sql.queries.history import KeptRun
from graphile_worker.jobs import RunAt


@dataclass(slots=True)
class Completed:
    """The task returned: delete the job."""

    claimed: ClaimedJob
    kept: KeptRun | None = None
    """What to keep of the run, if its task keeps something."""


@dataclass(slots=True)
class Failed:
    """The task raised. Without `when` the default backoff applies."""

    claimed: ClaimedJob
    error: BaseException
    when: RunAt | None = None
    is_permanent: bool = False
    # The failed items of a batch, as JSON.
    remaining_payload: str | None = None
    kept: KeptRun | None = None


@dataclass(slots=True)
class Snoozed:
    """The task asked to run again later. The attempt is not counted."""

    claimed: ClaimedJob
    when: RunAt
    kept: KeptRun | None = None
    """What to keep of the run, if the database rejects `when` and the job fails instead."""


@dataclass(slots=True)
class Interrupted:
    """The worker stopped the task or did not start it. The attempt is not counted."""

    claimed: ClaimedJob
    when: RunAt | None = None


@dataclass(slots=True)
class CompletedInTransaction:
    """The task completed the job in its own transaction. It may have raised `late_error` later."""

    claimed: ClaimedJob
    late_error: BaseException | None = None


Outcome = Completed | Failed | Snoozed | Interrupted | CompletedInTransaction
