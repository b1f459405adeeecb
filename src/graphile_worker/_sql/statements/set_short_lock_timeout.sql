-- For this transaction: give up a lock after 250 ms, so that sessions that add jobs do not queue
-- behind this one.
set local lock_timeout = '250ms';
