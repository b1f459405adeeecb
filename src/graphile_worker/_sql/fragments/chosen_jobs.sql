-- Of the jobs $1: those that exist, and those that are not locked and that the conditions select.
-- The latter are locked, so that no worker claims them. Jobs that another session has locked are
-- skipped.
existing as materialized (
  select
    jobs.id,
    jobs.locked_at is not null as is_locked,
    :conditions as is_selected
  from :schema._private_jobs as jobs
  where jobs.id = any ($1::bigint[])
), chosen as materialized (
  select
    jobs.id,
    jobs.attempts >= jobs.max_attempts as is_failed
  from :schema._private_jobs as jobs
  where jobs.id = any (array(select existing.id from existing where existing.is_selected))
    and jobs.locked_at is null
    and :conditions
  order by jobs.id
  for update skip locked
)
