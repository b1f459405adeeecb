-- job_columns of a job that a fetch has just taken. To write a time costs as much as all the rest: so
-- one that is when the job was created is left out, and what is the same for all is written once.
jobs.payload::text,
jobs.priority,
case when jobs.run_at <> jobs.created_at then extract(epoch from jobs.run_at)::text end,
jobs.attempts,
jobs.max_attempts,
jobs.last_error,
extract(epoch from jobs.created_at)::text,
case when jobs.updated_at <> jobs.created_at then extract(epoch from jobs.updated_at)::text end,
jobs.key,
(select extract(epoch from moment)::text from given),
$1::text,
jobs.revision,
jobs.flags::text
