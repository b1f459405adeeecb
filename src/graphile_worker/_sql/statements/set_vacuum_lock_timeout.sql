-- For this transaction: wait long enough for a lock that an automatic vacuum, which yields after 1
-- s, ends.
set local lock_timeout = '3s';
