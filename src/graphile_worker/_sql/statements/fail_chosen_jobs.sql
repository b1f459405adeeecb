-- Spend all attempts of those of jobs $1 that are meant, for reason $2; how many, and how many were
-- left to whoever holds them.
with :chosen_jobs, changed as (
  select jobs.id
  from :schema.permanently_fail_jobs(
    job_ids => array(select chosen.id from chosen),
    error_message => $2::text
  ) as jobs
)
select
  (select pg_catalog.count(*) from changed),
  :skipped_count;
