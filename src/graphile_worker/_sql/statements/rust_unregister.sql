-- Pools $1 have ended; for Rust workers.
select :schema.worker_deregister(pool.id)
from pg_catalog.unnest($1::text[]) as pool (id);
