-- Remove pools $1, which have stopped, from the registry of Rust workers.
select :schema.worker_deregister(pool.id)
from pg_catalog.unnest($1::text[]) as pool (id);
