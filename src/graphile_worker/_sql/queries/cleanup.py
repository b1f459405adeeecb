"""Queries that delete unused rows."""

from graphile_worker._sql.query import Query, read_bool, read_count


def delete_permanently_failed_jobs() -> Query[int]:
    return Query("delete_permanently_failed_jobs", (), read_count)


def set_short_lock_timeout() -> Query[None]:
    return Query("set_short_lock_timeout")


def lock_tasks() -> Query[None]:
    return Query("lock_tasks")


def lock_queues() -> Query[None]:
    return Query("lock_queues")


def has_unused_tasks(keep: list[str]) -> Query[bool]:
    return Query("has_unused_tasks", (keep,), read_bool)


def has_unused_queues() -> Query[bool]:
    return Query("has_unused_queues", (), read_bool)


def delete_unused_tasks(keep: list[str]) -> Query[int]:
    return Query("delete_unused_tasks", (keep,), read_count)


def delete_unused_queues() -> Query[int]:
    return Query("delete_unused_queues", (), read_count)
