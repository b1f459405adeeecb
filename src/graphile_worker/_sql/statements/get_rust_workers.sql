-- Return the workers of the Rust registry, which includes Python pools, and the seconds since their
-- last heartbeat.
select
  workers.id,
  extract(epoch from workers.started_at)::text,
  extract(epoch from pg_catalog.now() - workers.last_heartbeat_at)::float8,
  workers.metadata::text
from :schema._private_workers as workers
order by workers.id;
