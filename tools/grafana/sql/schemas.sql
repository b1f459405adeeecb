select schemas.nspname::text
from pg_catalog.pg_class as tables
join pg_catalog.pg_namespace as schemas on schemas.oid = tables.relnamespace
where tables.relname = '_private_jobs'
  and pg_catalog.has_schema_privilege(schemas.oid, 'usage')
order by schemas.nspname = 'graphile_worker' desc, 1
