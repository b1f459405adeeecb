-- Return the outcomes of job $1, the newest first, at most $2. Roles that may not
-- read results can run it.
select
  outcomes.job_id,
  outcomes.task_identifier,
  outcomes.succeeded,
  outcomes.attempts,
  extract(epoch from outcomes.created_at)::text,
  extract(epoch from outcomes.run_at)::text,
  extract(epoch from outcomes.started_at)::text,
  extract(epoch from outcomes.finished_at)::text,
  outcomes.pool_id,
  outcomes.has_result,
  outcomes.error
from :ext_schema.outcomes as outcomes
where outcomes.job_id = $1::bigint
  and (outcomes.expires_at is null or outcomes.expires_at > pg_catalog.now())
order by outcomes.finished_at desc
limit $2::int;
