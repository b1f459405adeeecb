-- May this transaction sweep? One does at a time, Rust workers included: the numbers are theirs. It
-- waits for nobody's lock for long, takes the time to read a large table, and makes way if whoever
-- began it stands still.
select
  pg_try_advisory_xact_lock(1196905043, 1398228304),
  set_config('lock_timeout', '250ms', true),
  set_config('statement_timeout', '60s', true),
  set_config('idle_in_transaction_session_timeout', '2s', true);
