-- Return the last value of each sequence of ids of schema $1, or 0 if this role may not read it.
select
  tables.relname::text,
  ids.sequencename::text,
  coalesce(ids.last_value, 0),
  ids.max_value
from pg_catalog.pg_sequences as ids
join pg_catalog.pg_namespace as schemas on schemas.nspname = ids.schemaname
join pg_catalog.pg_class as sequences
  on sequences.relnamespace = schemas.oid
  and sequences.relname = ids.sequencename
join pg_catalog.pg_depend as links
  on links.classid = 'pg_catalog.pg_class'::regclass::oid
  and links.objid = sequences.oid
  and links.refclassid = 'pg_catalog.pg_class'::regclass::oid
  and links.deptype in ('a', 'i')
join pg_catalog.pg_class as tables on tables.oid = links.refobjid
where ids.schemaname = $1::text
order by 1;
