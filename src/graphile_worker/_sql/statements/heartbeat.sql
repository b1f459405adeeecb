-- Record a heartbeat of pools $1, which have started jobs $2. Returns the pools that were not
-- rescued, the current time, and when the server started.
update :ext_schema.pools as pools
set seen_at = pg_catalog.now(),
    started_jobs = $2::bigint[]
where pools.id = any ($1::text[])
  and pools.swept_at is null
returning
  pools.id,
  extract(epoch from pg_catalog.now())::float8,
  extract(epoch from pg_catalog.pg_postmaster_start_time())::float8;
