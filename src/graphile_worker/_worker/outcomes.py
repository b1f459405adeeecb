"""How a job can end in this process.

One is made for every job: not frozen, which would take three times as long.
"""

from dataclasses import dataclass

from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker.jobs import RunAt


@dataclass(slots=True)
class Completed:
    """The task returned: the row can go."""

    claimed: ClaimedJob


@dataclass(slots=True)
class Failed:
    """The task raised. Without `when` the job backs off as usual; giving up spends all attempts."""

    claimed: ClaimedJob
    error: BaseException
    when: RunAt | None = None
    is_permanent: bool = False
    # Of a batch: what is left of its payload, as JSON.
    remaining_payload: str | None = None


@dataclass(slots=True)
class Snoozed:
    """The task asked to run again later, as if this attempt had not been."""

    claimed: ClaimedJob
    when: RunAt


@dataclass(slots=True)
class Interrupted:
    """The worker stopped it, or did not begin: the job is handed back with its attempt."""

    claimed: ClaimedJob
    when: RunAt | None = None


@dataclass(slots=True)
class CompletedInTransaction:
    """The task itself ended the job, in a transaction of its own; what it raised after that."""

    claimed: ClaimedJob
    late_error: BaseException | None = None


Outcome = Completed | Failed | Snoozed | Interrupted | CompletedInTransaction
