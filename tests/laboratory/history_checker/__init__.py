"""Record what happens to the tables of a queue, and check it against the promises of the library.

The package needs a database and nothing else of the laboratory. Use it in any test:

    install_audit(database.dsn, database.schema)
    ...  # workers, clients, faults
    report = check(read_audit(database.dsn, database.schema))
    assert report.violations == 0, "\\n".join(report.lines())
"""

from tests.laboratory.history_checker.audit import install_audit, read_audit
from tests.laboratory.history_checker.checker import check
from tests.laboratory.history_checker.expectations import Expectations
from tests.laboratory.history_checker.history import (
    Add,
    Body,
    Change,
    CrontabRow,
    Effect,
    Fault,
    Final,
    History,
    JobRow,
    Journal,
    KeptAttempt,
    KeptOutcome,
    QueueRow,
    Row,
    Step,
)
from tests.laboratory.history_checker.report import RULES, Report, Violation

__all__ = [
    "RULES",
    "Add",
    "Body",
    "Change",
    "CrontabRow",
    "Effect",
    "Expectations",
    "Fault",
    "Final",
    "History",
    "JobRow",
    "Journal",
    "KeptAttempt",
    "KeptOutcome",
    "QueueRow",
    "Report",
    "Row",
    "Step",
    "Violation",
    "check",
    "install_audit",
    "read_audit",
]
