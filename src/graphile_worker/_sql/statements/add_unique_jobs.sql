-- Add the jobs of the JSON array $1, each unless the window of its key is open at time $2, or now.
-- Returns the new or the earlier jobs in the order of the array. The columns of an earlier job that
-- is deleted are null, except its id and when it was added.
select
  jobs.id,
  jobs.task_identifier,
  jobs.queue_name,
  :job_columns,
  jobs.is_duplicate
from :ext_schema.add_unique_jobs($1::text::json, $2::text::timestamptz) as jobs
order by jobs.spec_position;
