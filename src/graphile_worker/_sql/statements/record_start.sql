-- Pool $2 is about to run job $1, which a dead pool left behind, at attempt $3; at how many recoveries
-- it was running. Nothing if the pool no longer holds it, or if those are as many as $4.
insert into :ext_schema.recoveries as recoveries (job_id, count, started_by, started_attempt)
select jobs.id, 0, jobs.locked_by, jobs.attempts
from :schema._private_jobs as jobs
where jobs.id = $1::bigint
  and jobs.locked_by = $2::text
  and jobs.attempts = $3::int
on conflict (job_id) do update
set started_by = excluded.started_by,
    started_attempt = excluded.started_attempt
where $4::int is null
  or recoveries.count < $4::int
returning recoveries.count;
