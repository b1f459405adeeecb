-- Pools $1 live, with details $2; for Rust workers, which take the jobs of whom they do not know.
select :schema.worker_heartbeat(pool.id, $2::text::json)
from pg_catalog.unnest($1::text[]) as pool (id);
