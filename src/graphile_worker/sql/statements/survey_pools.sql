-- The pools in our registry: how long each has been silent, how long it may be, and what it said of itself.
select
  pools.id,
  extract(epoch from now() - pools.seen_at)::float8,
  extract(epoch from pools.lease)::float8,
  pools.swept_at is not null,
  -- After a restart of the server nobody could be seen for a while.
  extract(epoch from now() - pg_postmaster_start_time())::float8,
  extract(epoch from pools.started_at)::float8,
  pools.details ->> 'host',
  pools.details ->> 'pid',
  pools.details ->> 'clock'
from :ext_schema.pools as pools
order by pools.seen_at
limit 1000;
