-- Count the sessions that wait to commit a notification, after $1 milliseconds. From the first of its
-- notifications on, a commit holds a lock on "database 0", which all databases of the server share.
with pause as materialized (
  select pg_catalog.pg_sleep($1::int::float8 / 1000.0::float8) is not null as is_over
)
select pg_catalog.count(waiting.pid)
from pause
left join lateral (
  select locks.pid
  from pg_catalog.pg_locks as locks
  where pause.is_over
    and locks.locktype = 'object'
    and locks.database = 0::oid
    and locks.classid = 'pg_catalog.pg_database'::regclass::oid
    and locks.objid = 0::oid
    and not locks.granted
) as waiting on true;
