-- Return the storage parameters of the tables $2 of schema $1, and whether this role may change
-- them.
select
  tables.relname::text,
  coalesce(tables.reloptions, '{}'),
  pg_catalog.pg_has_role(tables.relowner, 'usage'),
  pg_catalog.pg_get_userbyid(tables.relowner)::text
from pg_catalog.pg_class as tables
join pg_catalog.pg_namespace as schemas on schemas.oid = tables.relnamespace
where schemas.nspname = $1::text
  and tables.relname = any ($2::text[]);
