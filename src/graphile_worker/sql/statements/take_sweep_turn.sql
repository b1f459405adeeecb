-- May this transaction sweep? One does at a time, Rust workers included: the numbers are theirs.
select pg_try_advisory_xact_lock(1196905043, 1398228304);
