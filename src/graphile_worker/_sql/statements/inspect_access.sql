-- Return the privileges that this role lacks on schema $1 and companion $2, and the tables whose
-- rows it would not see.
select
  schemas.nspname = $2::text,
  relations.relname::text,
  pg_catalog.pg_get_userbyid(relations.relowner)::text,
  exists (select from pg_catalog.pg_roles where oid = relations.relowner and rolsuper),
  pg_catalog.has_schema_privilege(schemas.oid, 'usage'),
  array(
    select privileges.privilege
    from pg_catalog.unnest(pg_catalog.string_to_array(needed.privileges, ' ')) as privileges (privilege)
    where not pg_catalog.has_table_privilege(relations.oid, privileges.privilege)
  ),
  -- An owner sees all rows unless row security is forced. A policy may let other roles see them.
  pg_catalog.row_security_active(relations.oid)
    and not exists (
      select
      from pg_catalog.pg_policy as policies
      cross join pg_catalog.unnest(policies.polroles) as roles (id)
      where policies.polrelid = relations.oid
        and case roles.id when 0::oid then true else pg_catalog.pg_has_role(roles.id, 'usage') end
    ),
  exists (select from pg_catalog.pg_policy as policies where policies.polrelid = relations.oid)
from (
  values
    ($1::text, 'migrations', 'select'),
    ($1::text, '_private_jobs', 'select insert update delete'),
    ($1::text, '_private_job_queues', 'select insert update'),
    ($1::text, '_private_tasks', 'select insert'),
    ($1::text, '_private_known_crontabs', 'select insert update'),
    ($2::text, 'migrations', 'select'),
    ($2::text, 'pools', 'select insert update delete'),
    ($2::text, 'recoveries', 'select insert update delete'),
    ($2::text, 'pauses', 'select insert update delete'),
    ($2::text, 'unique_keys', 'select insert update delete')
) as needed (schema_name, name, privileges)
join pg_catalog.pg_namespace as schemas on schemas.nspname = needed.schema_name
join pg_catalog.pg_class as relations
  on relations.relnamespace = schemas.oid
  and relations.relname = needed.name
union all
select
  false,
  routines.proname::text,
  pg_catalog.pg_get_userbyid(routines.proowner)::text,
  exists (select from pg_catalog.pg_roles where oid = routines.proowner and rolsuper),
  pg_catalog.has_schema_privilege(schemas.oid, 'usage'),
  case
    when pg_catalog.has_function_privilege(routines.oid, 'execute') then '{}'
    else '{execute}'::text[]
  end,
  false,
  false
from pg_catalog.pg_proc as routines
join pg_catalog.pg_namespace as schemas on schemas.oid = routines.pronamespace
where schemas.nspname = $1::text
  and routines.proname in ('add_job', 'add_jobs', 'remove_job')
order by 1, 2;
