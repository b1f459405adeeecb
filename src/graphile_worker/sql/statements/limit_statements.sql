-- For this transaction: read only; give up a statement after $1 milliseconds, and a lock soon, lest others queue behind us.
select
  set_config('transaction_read_only', 'on', true),
  set_config('statement_timeout', $1::int::text, true),
  set_config('lock_timeout', '250ms', true);
