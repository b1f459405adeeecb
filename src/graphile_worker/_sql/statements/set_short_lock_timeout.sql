-- For this transaction: give up on a lock after a quarter of a second, lest producers queue behind us.
set local lock_timeout = '250ms';
