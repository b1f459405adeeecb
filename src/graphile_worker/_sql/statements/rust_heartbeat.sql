-- Record a heartbeat of pools $1 with details $2 for Rust workers, which take over the jobs of
-- unknown workers.
select :schema.worker_heartbeat(pool.id, $2::text::json)
from pg_catalog.unnest($1::text[]) as pool (id);
