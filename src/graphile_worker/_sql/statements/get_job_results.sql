-- Return the results and payloads of job $1 with the times at which its runs ended, the newest
-- first, at most $2.
select
  extract(epoch from outcomes.finished_at)::text,
  outcomes.result::text,
  outcomes.payload::text
from :ext_schema.outcomes as outcomes
where outcomes.job_id = $1::bigint
  and (outcomes.has_result or outcomes.payload is not null)
  and (outcomes.expires_at is null or outcomes.expires_at > pg_catalog.now())
order by outcomes.finished_at desc
limit $2::int;
