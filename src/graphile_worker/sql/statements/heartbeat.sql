-- Pools $1 live and have started jobs $2; which of them are heard, as one that was swept is not, and
-- the time.
update :ext_schema.pools as pools
set seen_at = now(),
    started_jobs = $2::bigint[]
where pools.id = any ($1::text[])
  and pools.swept_at is null
returning pools.id, extract(epoch from now())::float8;
