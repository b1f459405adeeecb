-- Return the jobs and the named queues that pool $1 has locked, except jobs $2 and queues $3, which
-- it knows about.
select jobs.id, null::int
from :schema._private_jobs as jobs
-- A comparison, so that the index gwpy_locked_jobs skips ranges without locked rows.
where jobs.locked_at > '-infinity'::timestamptz
  and jobs.locked_by = $1::text
  and jobs.id <> all ($2::bigint[])
union all
select null::bigint, job_queues.id
from :schema._private_job_queues as job_queues
where job_queues.locked_by = $1::text
  and job_queues.id <> all ($3::int[]);
