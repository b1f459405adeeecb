-- Return the sessions that hold the rescue lock: a row of the table of turns in schema $1, or the
-- advisory lock of Rust workers. Each has its process, role, application, and the seconds since the
-- transaction began, if this role may see it. A prepared transaction has no process.
select distinct
  locks.pid,
  sessions.usename::text,
  sessions.application_name,
  extract(epoch from pg_catalog.now() - sessions.xact_start)::float8
from pg_catalog.pg_locks as locks
join pg_catalog.pg_database as databases on databases.oid = locks.database
left join pg_catalog.pg_stat_activity as sessions on sessions.pid = locks.pid
where databases.datname = pg_catalog.current_database()
  and locks.granted
  and locks.pid is distinct from pg_catalog.pg_backend_pid()
  and (
    (
      locks.locktype = 'advisory'
      and locks.classid = 1196905043::oid
      and locks.objid = 1398228304::oid
      and locks.objsubid = 2::smallint
    )
    or (
      locks.locktype = 'relation'
      -- A transaction that has locked a row has this lock on the table until it ends.
      and locks.mode <> 'AccessShareLock'
      and locks.relation in (
        select turns.oid
        from pg_catalog.pg_class as turns
        join pg_catalog.pg_namespace as schema on schema.oid = turns.relnamespace
        where schema.nspname = $1::text
          and turns.relname = 'turns'
      )
    )
  )
order by 1;
