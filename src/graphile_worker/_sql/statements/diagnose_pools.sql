-- The pools in our registry: how long each has been silent, how long it may be, and what it said of itself.
select
  pools.id,
  extract(epoch from pg_catalog.now() - pools.seen_at)::float8,
  extract(epoch from pools.lease)::float8,
  pools.swept_at is not null,
  -- After a restart of the server nobody could be seen for a while.
  extract(epoch from pg_catalog.now() - pg_catalog.pg_postmaster_start_time())::float8,
  extract(epoch from pools.started_at)::float8,
  pools.details ->> 'host'::text,
  pools.details ->> 'pid'::text,
  pools.details ->> 'clock'::text
from :ext_schema.pools as pools
where pools.details ->> 'stopped'::text is distinct from 'true'
order by pools.seen_at
limit 1000;
