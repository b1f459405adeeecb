-- Limit what a sweep may take, and ask for the lock under which Rust workers sweep; is it free? The
-- numbers are theirs. A sweep waits briefly for locks, has the time to read a large table, and ends if
-- the program that began it is stopped. It reads the table by its index on locks, which the planner
-- takes for as dear as reading all of it.
select
  pg_catalog.pg_try_advisory_xact_lock(1196905043, 1398228304),
  pg_catalog.set_config('lock_timeout', '250ms', true),
  pg_catalog.set_config('statement_timeout', '60s', true),
  pg_catalog.set_config('enable_seqscan', 'off', true),
  pg_catalog.set_config('idle_in_transaction_session_timeout', '2s', true);
