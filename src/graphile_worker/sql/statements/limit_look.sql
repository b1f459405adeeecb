-- Of this transaction: it only reads, no statement takes more than $1 milliseconds or waits for a lock, and
-- each has one process, as others work here. Whoever looks at the sessions sees whose it is.
select
  set_config('transaction_read_only', 'on', true),
  set_config('statement_timeout', $1::int::text, true),
  set_config('lock_timeout', '250ms', true),
  set_config('max_parallel_workers_per_gather', '0', true),
  set_config('jit', 'off', true),
  set_config('application_name', 'graphile-worker top', true);
