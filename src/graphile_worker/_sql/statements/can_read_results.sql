-- Return whether this role may read the results and payloads of jobs in schema $1.
select
  pg_catalog.has_column_privilege(relation.oid, 'result', 'select')
  and pg_catalog.has_column_privilege(relation.oid, 'payload', 'select')
from pg_catalog.pg_class as relation
join pg_catalog.pg_namespace as schema on schema.oid = relation.relnamespace
where schema.nspname = $1::text
  and relation.relname = 'outcomes';
