-- Of the jobs $1, those that are there, and those that nobody holds and that are still meant: locked,
-- so that nobody takes them meanwhile. What somebody else has in hand is not waited for.
there as materialized (
  select
    jobs.id,
    jobs.locked_at is not null as is_locked,
    :conditions as is_meant
  from :schema._private_jobs as jobs
  where jobs.id = any ($1::bigint[])
), chosen as materialized (
  select
    jobs.id,
    jobs.attempts >= jobs.max_attempts as is_failed
  from :schema._private_jobs as jobs
  where jobs.id = any (array(select there.id from there where there.is_meant))
    and jobs.locked_at is null
    and :conditions
  order by jobs.id
  for update skip locked
)
