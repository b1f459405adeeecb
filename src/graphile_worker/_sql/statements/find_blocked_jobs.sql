-- Return those of jobs $1 that pool $2 has locked and whose rows another session has locked, for
-- example to change or remove them by their keys. A write would wait until its transaction ends.
with free as materialized (
  select jobs.id
  from :schema._private_jobs as jobs
  where jobs.id = any ($1::bigint[])
    and jobs.locked_by = $2::text
  for update skip locked
)
select jobs.id
from :schema._private_jobs as jobs
where jobs.id = any ($1::bigint[])
  and jobs.locked_by = $2::text
  and jobs.id <> all (array(select free.id from free));
