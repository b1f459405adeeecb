-- Lock the name of a schema for this session, unless another session has the lock.
select pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended($1::text, 0));
