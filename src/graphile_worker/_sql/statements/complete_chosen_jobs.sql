-- Delete the jobs $1 that the conditions select. Returns how many, and how many were skipped
-- because they are locked.
with :chosen_jobs, changed as (
  select jobs.id
  from :schema.complete_jobs(job_ids => array(select chosen.id from chosen)) as jobs
)
select
  (select pg_catalog.count(*) from changed),
  :skipped_count;
