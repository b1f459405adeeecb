-- Return whether schema $1, beside schema $2, has the table pauses, whether this role may read it,
-- and whether it may write to it.
select
  pg_catalog.count(*) = 1,
  coalesce(pg_catalog.bool_and(tables.can_read), false),
  coalesce(
    pg_catalog.bool_and(
      tables.can_read
      and pg_catalog.has_table_privilege(tables.oid, 'insert')
      and pg_catalog.has_table_privilege(tables.oid, 'update')
      and pg_catalog.has_table_privilege(tables.oid, 'delete')
    ),
    false
  )
from (
  select
    relation.oid,
    pg_catalog.has_schema_privilege(schema.oid, 'usage')
      and pg_catalog.has_table_privilege(relation.oid, 'select')
      and not exists (:foreign_objects) as can_read
  from pg_catalog.pg_class as relation
  join pg_catalog.pg_namespace as schema on schema.oid = relation.relnamespace
  where schema.nspname = $1::text
    and relation.relname = 'pauses'
    and relation.relkind = 'r'
) as tables;
