-- Return whether schema $1, beside schema $2, contains the registry of pools and this role may use
-- it.
select pg_catalog.count(*) = 2
from pg_catalog.pg_class as relation
join pg_catalog.pg_namespace as schema on schema.oid = relation.relnamespace
where schema.nspname = $1::text
  and relation.relname in ('pools', 'recoveries')
  and pg_catalog.has_schema_privilege(schema.oid, 'usage')
  and pg_catalog.has_table_privilege(relation.oid, 'select')
  and pg_catalog.has_table_privilege(relation.oid, 'insert')
  and pg_catalog.has_table_privilege(relation.oid, 'update')
  and pg_catalog.has_table_privilege(relation.oid, 'delete')
  and not exists (:foreign_objects);
