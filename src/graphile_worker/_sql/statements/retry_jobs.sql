-- Let those of jobs $1 that are meant run now, the failed ones with all their attempts; how many,
-- and how many were left to whoever holds them.
with :chosen_jobs, changed as (
  select jobs.id
  from :schema.reschedule_jobs(
    job_ids => array(select chosen.id from chosen where chosen.is_failed),
    run_at => pg_catalog.now(),
    attempts => 0
  ) as jobs
  union all
  select jobs.id
  from :schema.reschedule_jobs(
    job_ids => array(select chosen.id from chosen where not chosen.is_failed),
    run_at => pg_catalog.now()
  ) as jobs
)
select
  (select pg_catalog.count(*) from changed),
  :skipped_count;
