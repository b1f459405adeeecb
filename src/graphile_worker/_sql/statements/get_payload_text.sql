-- Return the first $2 characters of the payload of job $1, and its size in bytes.
select
  pg_catalog.left(jobs.payload::text, $2::int),
  pg_catalog.octet_length(jobs.payload::text)
from :schema._private_jobs as jobs
where jobs.id = $1::bigint;
