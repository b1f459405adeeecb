-- Summarize the outcomes that the conditions select, from time $1 on and before time $2, in buckets
-- of $3 seconds: the start of the bucket, how many succeeded and failed, and the median and the 95th
-- percentile of the run time and of the wait in seconds. Reads at most $4 outcomes.
select
  outcomes.bucket * $3::int,
  pg_catalog.count(*) filter (where outcomes.succeeded),
  pg_catalog.count(*) filter (where not outcomes.succeeded),
  (
    pg_catalog.percentile_cont(array[0.5::float8, 0.95::float8])
    within group (order by outcomes.run_seconds)
  )::text,
  (
    pg_catalog.percentile_cont(array[0.5::float8, 0.95::float8])
    within group (order by outcomes.wait_seconds)
  )::text
from (
  select
    pg_catalog.floor(extract(epoch from outcomes.finished_at)::float8 / $3::int::float8)::bigint
      as bucket,
    outcomes.succeeded,
    extract(epoch from outcomes.finished_at - outcomes.started_at)::float8 as run_seconds,
    greatest(0::float8, extract(epoch from outcomes.started_at - outcomes.run_at)::float8)
      as wait_seconds
  from :ext_schema.outcomes as outcomes
  where outcomes.finished_at >= pg_catalog.to_timestamp($1::text::float8)
    and outcomes.finished_at < pg_catalog.to_timestamp($2::text::float8)
    and :conditions
    and (outcomes.expires_at is null or outcomes.expires_at > pg_catalog.now())
  limit $4::int
) as outcomes
group by outcomes.bucket
order by outcomes.bucket;
