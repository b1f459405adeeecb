-- Fail with a message if another role created the companion schema or a table in it: code of that
-- role could run as each role that uses them. Allowed owners are this role, and roles with the
-- privileges of the owner of the shared schema.
select pg_catalog.concat(
  objects.name, ' belongs to role ', pg_catalog.pg_get_userbyid(objects.owner),
  ', which may not own it. Drop this schema, or let it and its tables belong to the owner of the other'
)::int
from (
  select companion.oid as schema, companion.nspname as name, companion.nspowner as owner
  from pg_catalog.pg_namespace as companion
  union all
  select relation.relnamespace, relation.relname, relation.relowner
  from pg_catalog.pg_class as relation
  where relation.relkind in ('r', 'p', 'v', 'm', 'f')
) as objects
join pg_catalog.pg_namespace as shared
  on shared.oid = pg_catalog.to_regnamespace($gw$:schema$gw$)::oid
where objects.schema = pg_catalog.to_regnamespace($gw$:ext_schema$gw$)::oid
  and objects.owner <> (
    select role.oid from pg_catalog.pg_roles as role where role.rolname = current_user
  )
  and not pg_catalog.pg_has_role(objects.owner, shared.nspowner, 'usage');
