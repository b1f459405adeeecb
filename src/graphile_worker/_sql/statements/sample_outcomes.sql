-- Summarize outcomes as summarize_outcomes does, from $4 percent of the pages of the slots $5.
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
  from :ext_schema.outcomes as outcomes tablesample pg_catalog.system ($4::text::float4)
  where outcomes.slot = any ($5::int[])
    and outcomes.finished_at >= pg_catalog.to_timestamp($1::text::float8)
    and outcomes.finished_at < pg_catalog.to_timestamp($2::text::float8)
    and :conditions
    and (outcomes.expires_at is null or outcomes.expires_at > pg_catalog.now())
) as outcomes
group by outcomes.bucket
order by outcomes.bucket;
