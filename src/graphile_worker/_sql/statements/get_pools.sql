-- Return the pools of the registry: last heartbeat, lease in seconds, whether they were rescued,
-- and their details.
select
  pools.id,
  extract(epoch from pools.started_at)::text,
  extract(epoch from pg_catalog.now() - pools.seen_at)::float8,
  extract(epoch from pools.lease)::float8,
  pools.swept_at is not null,
  pools.details::text
from :ext_schema.pools as pools
order by pools.id;
