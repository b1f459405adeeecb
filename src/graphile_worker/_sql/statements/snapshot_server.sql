-- Return the time, this session's database and role, the levels of schema $1, the counters of its
-- table of jobs, who owns that table, whether its rows are hidden from this role, and the server's
-- uptime in seconds.
select
  extract(epoch from pg_catalog.clock_timestamp())::text,
  pg_catalog.current_database()::text,
  current_user::text,
  (select pg_catalog.max(migrations.id) from :schema.migrations as migrations),
  (
    -- Old ledgers lack the column.
    select pg_catalog.max(migrations.id)
    from :schema.migrations as migrations
    where pg_catalog.to_jsonb(migrations) ->> 'breaking'::text = 'true'
  ),
  tables.n_tup_ins,
  tables.n_tup_del,
  pg_catalog.pg_get_userbyid(relations.relowner)::text,
  :are_rows_hidden,
  extract(epoch from pg_catalog.now() - pg_catalog.pg_postmaster_start_time())::float8
from pg_catalog.pg_class as relations
join pg_catalog.pg_namespace as schemas on schemas.oid = relations.relnamespace
join pg_catalog.pg_stat_all_tables as tables on tables.relid = relations.oid
where schemas.nspname = $1::text
  and relations.relname = '_private_jobs';
