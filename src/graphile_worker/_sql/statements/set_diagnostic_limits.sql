-- For this transaction: read only; give up a statement after $1 milliseconds, and a lock soon, lest others queue behind us.
select
  pg_catalog.set_config('transaction_read_only', 'on', true),
  pg_catalog.set_config('statement_timeout', $1::int::text, true),
  pg_catalog.set_config('lock_timeout', '250ms', true);
