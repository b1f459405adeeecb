"""Queries that keep the tables tidy."""

from collections.abc import Sequence

from graphile_worker._sql.query import Query, Row, read_nothing


def delete_permanently_failed_jobs() -> Query[int]:
    return Query("delete_permanently_failed_jobs", (), read_count)


def set_short_lock_timeout() -> Query[None]:
    return Query("set_short_lock_timeout", (), read_nothing)


def lock_tasks() -> Query[None]:
    return Query("lock_tasks", (), read_nothing)


def lock_queues() -> Query[None]:
    return Query("lock_queues", (), read_nothing)


def has_unused_tasks(keep: list[str]) -> Query[bool]:
    return Query("has_unused_tasks", (keep,), read_bool)


def has_unused_queues() -> Query[bool]:
    return Query("has_unused_queues", (), read_bool)


def delete_unused_tasks(keep: list[str]) -> Query[int]:
    return Query("delete_unused_tasks", (keep,), read_count)


def delete_unused_queues() -> Query[int]:
    return Query("delete_unused_queues", (), read_count)


def read_count(rows: Sequence[Row]) -> int:
    return int(rows[0][0])


def read_bool(rows: Sequence[Row]) -> bool:
    return bool(rows[0][0])
