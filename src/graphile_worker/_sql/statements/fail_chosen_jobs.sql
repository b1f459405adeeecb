-- Use up all attempts of the jobs $1 that the conditions select, for reason $2. Returns their ids,
-- and how many were skipped because they are locked.
with :chosen_jobs, changed as (
  select jobs.id
  from :schema.permanently_fail_jobs(
    job_ids => array(select chosen.id from chosen),
    error_message => $2::text
  ) as jobs
)
select
  array(select changed.id from changed order by changed.id),
  :skipped_count;
