"""Check a history. The checker does not know the code that made it.

It reads the changes that the database recorded, and decides by the row alone what each change was
(see `changes`). It learns the process of a pool from claims: the process that commits a claim has
the pool's name. Therefore:

- Each process needs its own application name, and its successor needs another one.
- A process that removes, fails or reschedules jobs must not be a worker.
- Within one process, writes of an old pool cannot be distinguished from those of a new pool.

Across rows, `seq` is the order of statements, not of commits. So a job counts as passed over only
if it was ready for `slack` seconds before a fetch and did not change for `slack` seconds after it,
if the process runs its task, and if both jobs belong to the same named queue or to none.
"""

from tests.laboratory.history_checker.expectations import Expectations
from tests.laboratory.history_checker.fault_times import FaultTimes
from tests.laboratory.history_checker.history import History
from tests.laboratory.history_checker.limits import LimitRules
from tests.laboratory.history_checker.outcome import OutcomeRules
from tests.laboratory.history_checker.replay import Replay
from tests.laboratory.history_checker.report import Report


def check(history: History, expectations: Expectations | None = None) -> Report:
    """Return the violations of a history, and its figures."""
    expectations = expectations or Expectations()
    report = Report()
    faults = FaultTimes(history.faults)
    replay = Replay(history, expectations, report, faults)
    replay.run()
    OutcomeRules(history, expectations, report, faults, replay).check()
    LimitRules(history, expectations, report, faults).check()
    replay.crontabs.check(expectations.cron_minutes or {})
    return report
