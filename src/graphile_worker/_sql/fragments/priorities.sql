-- The priorities of available jobs, from one to the next by the index: see other_jobs.
priorities as (
  (
    select jobs.priority
    from :schema._private_jobs as jobs
    where jobs.is_available = true
    order by jobs.priority
    limit 1
  )
  union all
  select (
    select jobs.priority
    from :schema._private_jobs as jobs
    where jobs.is_available = true
      and jobs.priority > before.priority
    order by jobs.priority
    limit 1
  )
  from priorities as before
  where before.priority is not null
)
