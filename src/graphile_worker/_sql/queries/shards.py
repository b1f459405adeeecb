"""Queries about the databases of several shards."""

from typing import NamedTuple

from graphile_worker._sql.query import Query, read_as


class DatabaseIdentity(NamedTuple):
    """The server and the name of a database."""

    system_identifier: str
    name: str


class StoredKey(NamedTuple):
    """The key and the queue of a job."""

    job_id: int
    key: str | None
    queue_name: str | None


def identify_database() -> Query[DatabaseIdentity]:
    return Query("identify_database", (), lambda rows: DatabaseIdentity(*rows[0]))


def lock_keyed_job(job_key: str) -> Query[bool]:
    return Query("lock_keyed_job", (job_key,), bool)


def lock_used_queue(queue_name: str) -> Query[bool]:
    return Query("lock_used_queue", (queue_name,), bool)


def count_shard_jobs() -> Query[tuple[int, int]]:
    """Return the number of jobs, and of those without a key and a queue."""
    return Query("count_shard_jobs", (), lambda rows: (rows[0][0], rows[0][1]))


def list_shard_keys(after_id: int, limit: int) -> Query[list[StoredKey]]:
    return Query("list_shard_keys", (after_id, limit), read_as(StoredKey))
