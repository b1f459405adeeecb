-- Return whether this role may read the tables of limits in schema $1, beside schema $2, and whether
-- it may write to them. It may not if they do not exist.
select
  pg_catalog.count(*) = 3 and pg_catalog.bool_and(tables.can_read),
  pg_catalog.count(*) = 3
    and pg_catalog.bool_and(
      tables.can_read
      and pg_catalog.has_table_privilege(tables.oid, 'insert')
      and pg_catalog.has_table_privilege(tables.oid, 'update')
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
    and relation.relname in ('limits', 'slots', 'rates')
    and relation.relkind = 'r'
) as tables;
