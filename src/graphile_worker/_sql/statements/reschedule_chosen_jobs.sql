-- Set run_at ($2, or $3 microseconds from now), priority $4, attempts $5 and max_attempts $6, where
-- given, of the jobs $1 that the conditions select. Returns their ids, and how many were skipped
-- because they are locked.
with :chosen_jobs, changed as (
  select jobs.id
  from :schema.reschedule_jobs(
    job_ids => array(select chosen.id from chosen),
    run_at => coalesce(
      $2::text::timestamptz,
      pg_catalog.now()
        + ($3::bigint / 3600000000)::float8 * interval '1 hour'
        + ($3::bigint % 3600000000)::float8 * interval '1 microsecond'
    ),
    priority => $4::int,
    attempts => $5::int,
    max_attempts => $6::int
  ) as jobs
)
select
  array(select changed.id from changed order by changed.id),
  :skipped_count;
