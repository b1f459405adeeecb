-- Wait for a lock in this transaction until an automatic vacuum ends, which yields after 1 s.
set local lock_timeout = '3s';
