-- For this transaction: wait so long for a lock that an automatic vacuum gives way; it does after 1 s.
set local lock_timeout = '3s';
