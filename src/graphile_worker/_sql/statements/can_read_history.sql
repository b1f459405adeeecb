-- Return whether schema $1 contains the tables of the history and this role may read them, except
-- for some columns.
select pg_catalog.count(*) = 3
from pg_catalog.pg_class as relation
join pg_catalog.pg_namespace as schema on schema.oid = relation.relnamespace
where schema.nspname = $1::text
  and relation.relname in ('history', 'outcomes', 'attempts')
  and pg_catalog.has_schema_privilege(schema.oid, 'usage')
  and pg_catalog.has_any_column_privilege(relation.oid, 'select');
