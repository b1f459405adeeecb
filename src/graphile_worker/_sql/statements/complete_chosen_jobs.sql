-- Delete those of jobs $1 that are meant; how many, and how many were left to whoever holds them.
with :chosen_jobs, changed as (
  select jobs.id
  from :schema.complete_jobs(job_ids => array(select chosen.id from chosen)) as jobs
)
select
  (select pg_catalog.count(*) from changed),
  :skipped_count;
