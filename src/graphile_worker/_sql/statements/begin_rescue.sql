-- Set the limits of a rescue, and try to take the advisory lock of Rust workers, whose numbers
-- these are. Returns whether it was free. A rescue waits briefly for locks, may read a large table,
-- and ends with the program that began it. It reads the table by the index on locks, although the
-- planner estimates that the index costs as much as the whole table.
select
  pg_catalog.pg_try_advisory_xact_lock(1196905043, 1398228304),
  pg_catalog.set_config('lock_timeout', '250ms', true),
  pg_catalog.set_config('statement_timeout', '60s', true),
  pg_catalog.set_config('enable_seqscan', 'off', true),
  pg_catalog.set_config('idle_in_transaction_session_timeout', '2s', true);
