-- Let no statement of this transaction take more than $1 milliseconds, or wait longer than $2 for a
-- lock; and let each have one process, as others work here. If $3 says so, read tables by indexes
-- where there are any: the planner takes gwpy_locked_jobs for as dear as reading all of the table.
select
  pg_catalog.set_config('statement_timeout', $1::int::text, true),
  pg_catalog.set_config('lock_timeout', $2::int::text, true),
  pg_catalog.set_config('max_parallel_workers_per_gather', '0', true),
  pg_catalog.set_config('jit', 'off', true),
  case when $3::boolean then pg_catalog.set_config('enable_seqscan', 'off', true) end;
