-- Return the payload of job $1, if pool $2 has it locked.
select jobs.payload::text
from :schema._private_jobs as jobs
where jobs.id = $1::bigint
  and jobs.locked_by = $2::text;
