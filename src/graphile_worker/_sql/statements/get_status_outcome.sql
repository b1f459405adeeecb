-- Return the newest outcome of job $1.
select
  outcomes.task_identifier,
  outcomes.succeeded,
  outcomes.attempts,
  outcomes.error,
  extract(epoch from outcomes.created_at)::text,
  extract(epoch from outcomes.started_at)::text,
  extract(epoch from outcomes.finished_at)::text
from :ext_schema.outcomes as outcomes
where outcomes.job_id = $1::bigint
  and (outcomes.expires_at is null or outcomes.expires_at > pg_catalog.now())
order by outcomes.finished_at desc
limit 1;
