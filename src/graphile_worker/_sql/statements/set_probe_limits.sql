-- Set the limits of a transaction that reads a few entries of indexes: read only, at most $1
-- milliseconds for a statement, and no long wait for a lock. It reads by indexes even if the
-- statistics of a table are outdated. $2 names the program in pg_stat_activity.
select
  pg_catalog.set_config('transaction_read_only', 'on', true),
  pg_catalog.set_config('statement_timeout', $1::int::text, true),
  pg_catalog.set_config('lock_timeout', '250ms', true),
  pg_catalog.set_config('idle_in_transaction_session_timeout', '5s', true),
  pg_catalog.set_config('max_parallel_workers_per_gather', '0', true),
  pg_catalog.set_config('jit', 'off', true),
  pg_catalog.set_config('enable_seqscan', 'off', true),
  pg_catalog.set_config('enable_sort', 'off', true),
  pg_catalog.set_config('application_name', $2::text, true);
