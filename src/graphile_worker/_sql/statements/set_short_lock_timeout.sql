-- Give up a lock in this transaction after 250 ms, so that sessions that add jobs do not queue
-- behind it.
set local lock_timeout = '250ms';
