-- Set the limits of a transaction that takes a sample, like set_limits: at most $1 milliseconds for a
-- statement. $2 names the program in pg_stat_activity. With $3 the transaction is read only. It ends
-- with the program that began it, because it may hold the lock of the sample.
select
  pg_catalog.set_config(
    'transaction_read_only',
    case when $3::boolean then 'on' else pg_catalog.current_setting('transaction_read_only') end,
    true
  ),
  pg_catalog.set_config('statement_timeout', $1::int::text, true),
  pg_catalog.set_config('lock_timeout', '250ms', true),
  pg_catalog.set_config('idle_in_transaction_session_timeout', '5s', true),
  pg_catalog.set_config('max_parallel_workers_per_gather', '0', true),
  pg_catalog.set_config('jit', 'off', true),
  pg_catalog.set_config('enable_sort', 'off', true),
  pg_catalog.set_config('application_name', $2::text, true);
