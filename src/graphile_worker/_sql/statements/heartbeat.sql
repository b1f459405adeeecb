-- Pools $1 live and have started jobs $2; which of them are heard, as one that was swept is not, the
-- time, and since when the server runs.
update :ext_schema.pools as pools
set seen_at = pg_catalog.now(),
    started_jobs = $2::bigint[]
where pools.id = any ($1::text[])
  and pools.swept_at is null
returning
  pools.id,
  extract(epoch from pg_catalog.now())::float8,
  extract(epoch from pg_catalog.pg_postmaster_start_time())::float8;
