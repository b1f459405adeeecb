-- Return the bodies of functions $2 of schema $1, and whether this role may replace them.
select
  routines.proname::text,
  routines.prosrc,
  pg_catalog.pg_has_role(routines.proowner, 'usage')
    and pg_catalog.has_schema_privilege(schemas.oid, 'create')
from pg_catalog.pg_proc as routines
join pg_catalog.pg_namespace as schemas on schemas.oid = routines.pronamespace
where schemas.nspname = $1::text
  and routines.proname = any ($2::text[])
order by routines.proname;
