"""Plans that change something and record it in the audit, in one transaction.

An entry names the actor, the action, the filter and the ids of the changed jobs. It contains no
payloads and no errors of jobs. A change that changes nothing leaves no entry. Where the audit table
is missing, or this role may not add entries, the change happens without one.
"""

from collections.abc import Callable, Collection
from typing import TypeVar

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.audit import (
    AuditAccess,
    add_audit_entry,
    begin_audit,
    delete_and_audit_failed_jobs,
    end_audit,
)
from graphile_worker._sql.query import Plan, Query, Transaction
from graphile_worker._sql.sqlstate import get_sqlstate
from graphile_worker._support.error_format import escape_non_ascii, make_printable
from graphile_worker._support.lazy_dataclass import LazyKeywordDataclass
from graphile_worker.errors import GraphileWorkerError

T = TypeVar("T")

MAX_ACTOR_CHARS = 200
MAX_TEXT_CHARS = 1000


class AuditLabel(LazyKeywordDataclass):
    """The words of an entry: who did what, to which jobs, and why."""

    action: str
    actor: str | None = None
    filter: str | None = None
    note: str | None = None

    def build_entry(self, access: AuditAccess, changed: Collection[int] | int) -> Query[None]:
        """Return the query that ends an audit: with an entry if something has changed."""
        if isinstance(changed, int):
            ids, count = [], changed
        else:
            ids, count = list(changed), len(changed)
        if not access.is_granted or not count:
            return end_audit()
        texts = (
            clean_actor(self.actor),
            self.action,
            clean_text(self.filter),
            clean_text(self.note),
        )
        actor, action, filter, note = (make_storable(text, access) for text in texts)
        return add_audit_entry(actor, action or "", filter, ids, count, note)

    def build_failed_jobs_cleanup(self, access: AuditAccess) -> Query[int]:
        """Return the query that deletes permanently failed jobs and adds the entries."""
        texts = (clean_actor(self.actor), self.action, clean_text(self.filter))
        actor, action, filter = (make_storable(text, access) for text in texts)
        return delete_and_audit_failed_jobs(actor, action or "", filter)


def plan_audited(
    change: Query[T] | Callable[[], Plan[T]],
    find_changed: Callable[[T], Collection[int] | int],
    schemas: Schemas,
    label: AuditLabel,
) -> Plan[T]:
    """Change something, and add an entry in the same transaction.

    Args:
        change: The query, or a function that makes a plan of queries. A retry calls it again.
        find_changed: Returns the ids of the changed jobs from the result, or a number of rows.
        schemas: The schemas of the queue.
        label: The words of the entry.

    Returns:
        A plan for the result of the change.
    """

    def build_plan() -> Plan[T]:
        access: AuditAccess = yield begin_audit(schemas)
        answer: T
        if isinstance(change, Query):
            answer = yield change
        else:
            answer = yield from change()
        if access.is_granted:
            yield label.build_entry(access, find_changed(answer))
        return answer

    result: T = yield build_audited_transaction(build_plan)
    return result


def build_audited_transaction(build_plan: Callable[[], Plan[T]]) -> Transaction:
    """Return the transaction of a plan that begins an audit. An error of the plan ends the audit.

    Args:
        build_plan: Makes the plan. A retry calls it again.

    Returns:
        The transaction.
    """

    def build_guarded_plan() -> Plan[T]:
        try:
            return (yield from build_plan())
        except GraphileWorkerError as error:
            # The caller may continue the transaction, unless the database raised the error.
            if get_sqlstate(error) is None:
                yield end_audit()
            raise

    return Transaction(build_guarded_plan)


def plan_audit(changed: Collection[int] | int, schemas: Schemas, label: AuditLabel) -> Plan[None]:
    """Add an entry about a change that needed several transactions.

    Args:
        changed: The ids of the changed jobs, or a number of rows.
        schemas: The schemas of the queue.
        label: The words of the entry.

    Returns:
        A plan.
    """
    return plan_audited(_plan_nothing, lambda _: changed, schemas, label)


def clean_actor(actor: str | None) -> str | None:
    """Return the name as one printable line of at most 200 characters, or None if it is empty."""
    if actor is None:
        return None
    return make_printable(actor.strip())[:MAX_ACTOR_CHARS] or None


def clean_text(text: str | None) -> str | None:
    """Return the text as one printable line of at most 1,000 characters."""
    if text is None:
        return None
    line = make_printable(text)
    return line if len(line) <= MAX_TEXT_CHARS else f"{line[: MAX_TEXT_CHARS - 1]}…"


def make_storable(text: str | None, access: AuditAccess) -> str | None:
    """Return the text with escapes if the database cannot store every character."""
    # A name that the database cannot store must not prevent the change.
    return text if text is None or access.is_utf8 else escape_non_ascii(text)


def _plan_nothing() -> Plan[None]:
    return
    yield
