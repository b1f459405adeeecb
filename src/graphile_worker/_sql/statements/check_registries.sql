-- Return whether this role may read the registry of Python pools, in schema $1, and that of Rust
-- workers, in schema $2.
select
  coalesce(pg_catalog.bool_or(schemas.nspname = $1::text and relations.relname = 'pools'), false)
    and not exists (:foreign_objects),
  coalesce(
    pg_catalog.bool_or(schemas.nspname = $2::text and relations.relname = '_private_workers'),
    false
  )
from pg_catalog.pg_class as relations
join pg_catalog.pg_namespace as schemas on schemas.oid = relations.relnamespace
where schemas.nspname in ($1::text, $2::text)
  and relations.relname in ('pools', '_private_workers')
  and relations.relkind = 'r'
  and pg_catalog.has_schema_privilege(schemas.oid, 'usage')
  and pg_catalog.has_table_privilege(relations.oid, 'select');
