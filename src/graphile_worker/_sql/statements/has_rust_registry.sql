-- Return whether schema $1 contains the registry of Rust workers and this role may use it.
select exists (
  select
  from pg_catalog.pg_proc as routine
  join pg_catalog.pg_namespace as schema on schema.oid = routine.pronamespace
  join pg_catalog.pg_class as relation
    on relation.relnamespace = schema.oid
    and relation.relname = '_private_workers'
  where schema.nspname = $1::text
    and routine.proname = 'worker_heartbeat'
    and pg_catalog.oidvectortypes(routine.proargtypes) = 'text, json'
    and pg_catalog.has_function_privilege(routine.oid, 'execute')
    and pg_catalog.has_table_privilege(relation.oid, 'select')
    and pg_catalog.has_table_privilege(relation.oid, 'insert')
    and pg_catalog.has_table_privilege(relation.oid, 'update')
    and pg_catalog.has_table_privilege(relation.oid, 'delete')
);
