-- Return the live and dead rows of the tables of schema $1, and the seconds since the last vacuum.
select
  tables.relname::text,
  tables.n_live_tup,
  tables.n_dead_tup,
  extract(
    epoch from pg_catalog.now() - greatest(tables.last_vacuum, tables.last_autovacuum)
  )::float8,
  coalesce(
    'autovacuum_enabled' = any (
      select pg_catalog.lower(pg_catalog.split_part(options.text, '=', 1))
      from pg_catalog.unnest(storage.reloptions) as options (text)
      where pg_catalog.lower(pg_catalog.split_part(options.text, '=', 2)) in ('false', 'off', 'no', '0')
    ),
    false
  )
from pg_catalog.pg_stat_all_tables as tables
join pg_catalog.pg_class as storage on storage.oid = tables.relid
where tables.schemaname = $1::text
  and tables.relname in ('_private_jobs', '_private_job_queues')
order by 1;
