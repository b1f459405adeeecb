-- The pools that were not seen for longer than their lease. Not right after a restart of the server,
-- when nobody could be seen.
select pools.id
from :ext_schema.pools as pools
where pools.seen_at < now() - pools.lease
  and pg_postmaster_start_time() < now() - pools.lease;
