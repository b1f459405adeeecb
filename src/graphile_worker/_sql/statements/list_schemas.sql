-- The schemas whose names begin with this text and that this role may drop.
select nspname::text
from pg_catalog.pg_namespace
where
  pg_catalog.starts_with(nspname::text, $1::text)
  and pg_catalog.pg_has_role(nspowner, 'USAGE')
order by nspname;
