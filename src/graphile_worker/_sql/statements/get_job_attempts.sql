-- Return the newest attempts of job $1, at most $2, the oldest of them first.
select
  attempts.attempt,
  extract(epoch from attempts.started_at)::text,
  attempts.duration::float8,
  attempts.pool_id,
  attempts.error,
  attempts.error_class
from (
  select
    attempts.attempt,
    attempts.started_at,
    attempts.duration,
    attempts.pool_id,
    attempts.error,
    attempts.error_class
  from :ext_schema.attempts as attempts
  where attempts.job_id = $1::bigint
    and (attempts.expires_at is null or attempts.expires_at > pg_catalog.now())
  order by attempts.started_at desc
  limit $2::int
) as attempts
order by attempts.started_at;
