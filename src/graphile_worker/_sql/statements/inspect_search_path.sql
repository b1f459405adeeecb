-- Return the roles that may create functions in schemas on the search path of this session, except
-- roles that may do so anyway: the owner of schema $1 and its members, the owner of the database,
-- superusers. For each: whether it owns the schema, and whether PostgreSQL searches that before
-- pg_catalog.
select
  places.nspname::text,
  coalesce(roles.rolname::text, 'public'),
  granted.grantee = places.nspowner,
  path.position < pg_catalog.array_position(pg_catalog.current_schemas(true), 'pg_catalog')
from pg_catalog.unnest(pg_catalog.current_schemas(true)) with ordinality as path (name, position)
join pg_catalog.pg_namespace as places on places.nspname = path.name
join pg_catalog.pg_namespace as schemas on schemas.nspname = $1::text
join pg_catalog.pg_database as databases on databases.datname = pg_catalog.current_database()
cross join lateral pg_catalog.aclexplode(
  coalesce(places.nspacl, pg_catalog.acldefault('n', places.nspowner))
) as granted
left join pg_catalog.pg_roles as roles on roles.oid = granted.grantee
where granted.privilege_type = 'CREATE'
  -- The temporary schema of the session, and system schemas.
  and not pg_catalog.starts_with(places.nspname::text, 'pg_')
  and granted.grantee <> databases.datdba
  and roles.rolname is distinct from 'pg_database_owner'
  and case granted.grantee
    when 0::oid then true
    else not pg_catalog.pg_has_role(granted.grantee, schemas.nspowner, 'member')
  end
order by path.position, 2;
