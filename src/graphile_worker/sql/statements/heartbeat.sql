-- Pools $1 live and have started jobs $2; which of them are still entered, as one that was swept is not.
update :ext_schema.pools as pools
set seen_at = now(),
    started_jobs = $2::bigint[]
where pools.id = any ($1::text[])
returning pools.id;
