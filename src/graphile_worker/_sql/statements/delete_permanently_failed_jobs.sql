-- Delete the jobs without attempts left. Returns how many.
with deleted as (
  delete from :schema._private_jobs as jobs
  where jobs.attempts >= jobs.max_attempts
    and jobs.locked_at is null
  returning jobs.id
)
select pg_catalog.count(*) from deleted;
