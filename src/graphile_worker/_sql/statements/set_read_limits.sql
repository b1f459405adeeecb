-- Set the limits of a transaction that answers a person: read only, at most $1 milliseconds for a
-- statement, $2 for a wait for a lock, and one process per statement, because workers need the
-- others. $3 names the program in pg_stat_activity.
select
  pg_catalog.set_config('transaction_read_only', 'on', true),
  pg_catalog.set_config('statement_timeout', $1::int::text, true),
  pg_catalog.set_config('lock_timeout', $2::int::text, true),
  pg_catalog.set_config('idle_in_transaction_session_timeout', '5s', true),
  pg_catalog.set_config('max_parallel_workers_per_gather', '0', true),
  pg_catalog.set_config('jit', 'off', true),
  pg_catalog.set_config('application_name', $3::text, true);
