-- Does schema $1 hold our registry of pools, for this role to use?
select count(*) = 2
from pg_class as relation
join pg_namespace as schema on schema.oid = relation.relnamespace
where schema.nspname = $1::text
  and relation.relname in ('pools', 'recoveries')
  and has_schema_privilege(schema.oid, 'usage')
  and has_table_privilege(relation.oid, 'select')
  and has_table_privilege(relation.oid, 'insert')
  and has_table_privilege(relation.oid, 'update')
  and has_table_privilege(relation.oid, 'delete');
