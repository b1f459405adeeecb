-- The workers of Rust's registry, in which ours are, too: how long ago they were seen, in seconds.
select
  workers.id,
  extract(epoch from workers.started_at)::text,
  extract(epoch from pg_catalog.now() - workers.last_heartbeat_at)::float8,
  workers.metadata::text
from :schema._private_workers as workers
order by workers.id;
