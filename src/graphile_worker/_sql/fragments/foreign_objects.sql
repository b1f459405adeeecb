-- Schema $1 and its tables, if their owner is neither this role nor a role with the privileges of
-- the owner of schema $2. Code of another role could run as each role that uses them.
select
  objects.name,
  pg_catalog.pg_get_userbyid(objects.owner)::text
from (
  select companion.nspname::text as name, companion.nspowner as owner
  from pg_catalog.pg_namespace as companion
  where companion.nspname = $1::text
  union all
  select relation.relname::text, relation.relowner
  from pg_catalog.pg_class as relation
  join pg_catalog.pg_namespace as companion on companion.oid = relation.relnamespace
  where companion.nspname = $1::text
    and relation.relkind in ('r', 'p', 'v', 'm', 'f')
) as objects
where objects.owner <> (
    select role.oid from pg_catalog.pg_roles as role where role.rolname = current_user
  )
  and not exists (
    select
    from pg_catalog.pg_namespace as shared
    where shared.nspname = $2::text
      and pg_catalog.pg_has_role(objects.owner, shared.nspowner, 'usage')
  )
