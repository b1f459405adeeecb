-- The pools of our registry: when they were seen last and for how long, in seconds, they may be
-- silent; whether they were taken for dead, and what they say of themselves.
select
  pools.id,
  extract(epoch from pools.started_at)::text,
  extract(epoch from pg_catalog.now() - pools.seen_at)::float8,
  extract(epoch from pools.lease)::float8,
  pools.swept_at is not null,
  pools.details::text
from :ext_schema.pools as pools
order by pools.id;
