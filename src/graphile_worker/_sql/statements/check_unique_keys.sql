-- Return whether schema $1, beside schema $2, has the table and the functions of unique keys, and
-- whether this role may use them.
select
  pg_catalog.count(*) = 1,
  coalesce(
    pg_catalog.bool_and(
      pg_catalog.has_schema_privilege(schema.oid, 'usage')
      and pg_catalog.has_table_privilege(relation.oid, 'select')
      and pg_catalog.has_table_privilege(relation.oid, 'insert')
      and pg_catalog.has_table_privilege(relation.oid, 'update')
      and pg_catalog.has_function_privilege(routine.oid, 'execute')
      and not exists (:foreign_objects)
    ),
    false
  )
from pg_catalog.pg_namespace as schema
join pg_catalog.pg_class as relation
  on relation.relnamespace = schema.oid
  and relation.relname = 'unique_keys'
  and relation.relkind = 'r'
join pg_catalog.pg_proc as routine
  on routine.pronamespace = schema.oid
  and routine.proname = 'add_unique_jobs'
where schema.nspname = $1::text;
