-- Record that pool $2 starts job $1, which was taken over from a dead pool, at attempt $3. Returns
-- its number of crashes, or no row if the pool has lost the job or the number is $4.
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
