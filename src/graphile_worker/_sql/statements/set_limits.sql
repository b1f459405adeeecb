-- Set the limits of this transaction: read only, at most $1 milliseconds for a statement, and no
-- long wait for a lock, which would hold up the sessions behind it. It uses one process, because
-- workers need the others. It does not sort, because the planner overestimates the groups of jobs
-- and would sort all of them. $2 names the program in pg_stat_activity.
select
  pg_catalog.set_config('transaction_read_only', 'on', true),
  pg_catalog.set_config('statement_timeout', $1::int::text, true),
  pg_catalog.set_config('lock_timeout', '250ms', true),
  pg_catalog.set_config('max_parallel_workers_per_gather', '0', true),
  pg_catalog.set_config('jit', 'off', true),
  pg_catalog.set_config('enable_sort', 'off', true),
  pg_catalog.set_config('application_name', $2::text, true);
