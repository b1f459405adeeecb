-- Return the results of job $1 with the times at which its runs ended, the newest first, at most $2.
select
  extract(epoch from outcomes.finished_at)::text,
  outcomes.result::text
from :ext_schema.outcomes as outcomes
where outcomes.job_id = $1::bigint
  and outcomes.has_result
  and (outcomes.expires_at is null or outcomes.expires_at > pg_catalog.now())
order by outcomes.finished_at desc
limit $2::int;
