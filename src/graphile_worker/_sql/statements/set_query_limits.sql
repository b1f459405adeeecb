-- Set the limits of this transaction: a timeout of $1 milliseconds, one of $2 for locks, and one
-- process per statement. With $3, read tables by indexes: the planner estimates gwpy_locked_jobs to
-- cost as much as the whole table.
select
  pg_catalog.set_config('statement_timeout', $1::int::text, true),
  pg_catalog.set_config('lock_timeout', $2::int::text, true),
  pg_catalog.set_config('max_parallel_workers_per_gather', '0', true),
  pg_catalog.set_config('jit', 'off', true),
  case when $3::boolean then pg_catalog.set_config('enable_seqscan', 'off', true) end;
