"""Check that the history can be read."""

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.ended_jobs import can_read_history
from graphile_worker._sql.query import Plan
from graphile_worker.errors import SchemaError
from graphile_worker.ops.search import (
    QueryLimits,
    with_limits,
)


class HistoryMissing(SchemaError):
    """The schema has no tables of outcomes, or this role may not read them."""

    _arguments = ("schema",)

    def __init__(self, schema: str) -> None:
        self.schema = schema
        super().__init__(
            f"schema {schema!r} has no tables of outcomes that this role may read. Run "
            "`graphile-worker migrate` as the owner, or grant the privileges."
        )


def plan_require_history(schemas: Schemas, limits: QueryLimits) -> Plan[None]:
    if not (yield from with_limits(can_read_history(schemas), schemas, limits)):
        raise HistoryMissing(schemas.companion)
