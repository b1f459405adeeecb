"""How a job can end in this process.

One is made for every job: not frozen, which would take three times as long.
"""

from dataclasses import dataclass

from graphile_worker.jobs import When
from graphile_worker.sql.holding import HeldJob


@dataclass(slots=True)
class Completed:
    """The task returned: the row can go."""

    held: HeldJob


@dataclass(slots=True)
class Failed:
    """The task raised. Without `when` the job backs off as usual; giving up spends all attempts."""

    held: HeldJob
    error: BaseException
    when: When | None = None
    give_up: bool = False
    # Of a batch: what is left of its payload, as JSON.
    left: str | None = None


@dataclass(slots=True)
class Snoozed:
    """The task asked to run again later, as if this attempt had not been."""

    held: HeldJob
    when: When


@dataclass(slots=True)
class Interrupted:
    """The worker stopped it, or did not begin: the job is handed back with its attempt."""

    held: HeldJob
    when: When | None = None


@dataclass(slots=True)
class Written:
    """The task itself ended the job, in a transaction of its own; what it raised after that."""

    held: HeldJob
    late_error: BaseException | None = None


Outcome = Completed | Failed | Snoozed | Interrupted | Written
