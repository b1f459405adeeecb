"""Queries of the dashboard, besides those that it shares with the command."""

from dataclasses import dataclass

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.query import Query

# The name of the sessions in pg_stat_activity.
PROGRAM_NAME = "graphile-worker dashboard"


@dataclass(frozen=True, slots=True)
class DatabaseFeatures:
    """The database, and what this role may do with the schemas."""

    database: str
    can_change: bool
    has_history: bool
    has_audit: bool
    has_pauses: bool


def set_read_limits(milliseconds: int, lock_milliseconds: int) -> Query[None]:
    return Query("set_read_limits", (milliseconds, lock_milliseconds, PROGRAM_NAME))


def inspect_features(schemas: Schemas) -> Query[DatabaseFeatures]:
    return Query(
        "inspect_features",
        (schemas.shared, schemas.companion),
        lambda rows: DatabaseFeatures(*rows[0]),
    )
