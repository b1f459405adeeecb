-- Of this transaction: it only reads, no statement takes more than $1 milliseconds or waits for a lock, and
-- each has one process, as others work here. Whoever looks at the sessions sees whose it is.
select
  pg_catalog.set_config('transaction_read_only', 'on', true),
  pg_catalog.set_config('statement_timeout', $1::int::text, true),
  pg_catalog.set_config('lock_timeout', '250ms', true),
  pg_catalog.set_config('max_parallel_workers_per_gather', '0', true),
  pg_catalog.set_config('jit', 'off', true),
  pg_catalog.set_config('application_name', 'graphile-worker top', true);
