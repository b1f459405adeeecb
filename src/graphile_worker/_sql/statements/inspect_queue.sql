-- Return the functions and the relations of schema $1, and whether the open transaction created its
-- tables, so that a rollback removes them. Their creator has the lock until the transaction ends.
select
  array(
    select routines.proname::text
    from pg_catalog.pg_proc as routines
    join pg_catalog.pg_namespace as schemas on schemas.oid = routines.pronamespace
    where schemas.nspname = $1::text
  ),
  array(
    select relations.relname::text
    from pg_catalog.pg_class as relations
    join pg_catalog.pg_namespace as schemas on schemas.oid = relations.relnamespace
    where schemas.nspname = $1::text and relations.relkind in ('r', 'p', 'v')
  ),
  exists (
    select
    from pg_catalog.pg_locks as locks
    join pg_catalog.pg_class as relations on relations.oid = locks.relation
    join pg_catalog.pg_namespace as schemas on schemas.oid = relations.relnamespace
    where locks.pid = pg_catalog.pg_backend_pid()
      and locks.mode = 'AccessExclusiveLock'
      and schemas.nspname = $1::text
      and relations.relkind in ('r', 'p', 'v')
  );
