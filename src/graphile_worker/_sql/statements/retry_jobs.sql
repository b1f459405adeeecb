-- Let the jobs $1 that the conditions select run now, failed ones with all their attempts. Returns
-- their ids, and how many were skipped because they are locked.
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
  array(select changed.id from changed order by changed.id),
  :skipped_count;
