-- What time it is, where we are, and how the table of jobs in schema $1 fares: rows added, deleted, living
-- and dead, since when no vacuum was there, and whether we would see its rows; and which session has had
-- a transaction open for longest, and how long the server is up. Ages in seconds.
select
  extract(epoch from pg_catalog.clock_timestamp())::text,
  pg_catalog.current_database()::text,
  current_user::text,
  (select pg_catalog.max(migrations.id) from :schema.migrations as migrations),
  tables.n_tup_ins,
  tables.n_tup_del,
  tables.n_live_tup,
  tables.n_dead_tup,
  extract(epoch from pg_catalog.now() - greatest(tables.last_vacuum, tables.last_autovacuum))::float8,
  pg_catalog.pg_get_userbyid(relations.relowner)::text,
  -- As for whoever looks: an owner sees all rows unless that is forced, a policy may let others see.
  pg_catalog.row_security_active(relations.oid)
    and not exists (
      select
      from pg_catalog.pg_policy as policies
      cross join pg_catalog.unnest(policies.polroles) as roles (id)
      where policies.polrelid = relations.oid
        and case roles.id when 0::oid then true else pg_catalog.pg_has_role(roles.id, 'usage') end
    ),
  oldest.name,
  oldest.state,
  oldest.seconds,
  extract(epoch from pg_catalog.now() - pg_catalog.pg_postmaster_start_time())::float8
from pg_catalog.pg_class as relations
join pg_catalog.pg_namespace as schemas on schemas.oid = relations.relnamespace
join pg_catalog.pg_stat_all_tables as tables on tables.relid = relations.oid
left join lateral (
  select
    pg_catalog.concat_ws(', ', pid::text, usename, nullif(application_name, '')) as name,
    state,
    extract(epoch from pg_catalog.clock_timestamp() - xact_start)::float8 as seconds
  from pg_catalog.pg_stat_activity
  where datname = pg_catalog.current_database()
    and backend_type = 'client backend'
    and pid <> pg_catalog.pg_backend_pid()
    and xact_start is not null
  order by xact_start
  limit 1
) as oldest on true
where schemas.nspname = $1::text
  and relations.relname = '_private_jobs';
