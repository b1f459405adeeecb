-- Return whether schema $1 contains outcomes, attempts and progress, and this role may delete them.
select pg_catalog.count(*) = 3
from pg_catalog.pg_class as relations
join pg_catalog.pg_namespace as schemas on schemas.oid = relations.relnamespace
where schemas.nspname = $1::text
  and relations.relname in ('outcomes', 'attempts', 'progress')
  and pg_catalog.has_schema_privilege(schemas.oid, 'usage')
  and pg_catalog.has_table_privilege(relations.oid, 'select')
  and pg_catalog.has_table_privilege(relations.oid, 'delete');
