-- Pool $2 is about to run job $1, which a dead pool left behind, at attempt $3; nothing if it no longer
-- holds it.
insert into :ext_schema.recoveries (job_id, count, started_by, started_attempt)
select jobs.id, 0, jobs.locked_by, jobs.attempts
from :schema._private_jobs as jobs
where jobs.id = $1::bigint
  and jobs.locked_by = $2::text
  and jobs.attempts = $3::int
on conflict (job_id) do update
set started_by = excluded.started_by,
    started_attempt = excluded.started_attempt
returning job_id;
