"""Queries about unique windows: keys with which no second job is added for a time."""

from datetime import datetime
from typing import NamedTuple

from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries.jobs import encode_when
from graphile_worker._sql.query import Query, Row, read_count, read_first


class UniqueKeysAccess(NamedTuple):
    """Whether the companion schema has unique keys, and whether this role may use them."""

    exists: bool
    is_usable: bool


def check_unique_keys(schemas: Schemas) -> Query[UniqueKeysAccess]:
    args = (schemas.companion, schemas.shared)
    return Query("check_unique_keys", args, lambda rows: UniqueKeysAccess(*rows[0]))


def add_unique_jobs(specs_json: str, decided_at: datetime | None) -> Query[list[Row]]:
    return Query("add_unique_jobs", (specs_json, encode_when(decided_at)[0]), list)


def lock_open_window(key: str, decided_at: datetime | None) -> Query[bool]:
    return Query("lock_open_window", (key, encode_when(decided_at)[0]), bool)


def delete_expired_keys(limit: int) -> Query[int]:
    return Query("delete_expired_keys", (limit,), read_count)


def clear_unique_keys(max_job_id: int) -> Query[None]:
    # With an argument: SQLAlchemy sessions cannot run statements without one.
    return Query("clear_unique_keys", (max_job_id,))


def get_unique_job(key: str) -> Query[int | None]:
    return Query("get_unique_job", (key,), read_first)
