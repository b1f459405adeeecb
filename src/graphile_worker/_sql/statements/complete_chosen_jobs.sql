-- Delete the jobs $1 that the conditions select. Returns their ids, and how many were skipped
-- because they are locked.
with :chosen_jobs, changed as (
  select jobs.id
  from :schema.complete_jobs(job_ids => array(select chosen.id from chosen)) as jobs
)
select
  array(select changed.id from changed order by changed.id),
  :skipped_count;
