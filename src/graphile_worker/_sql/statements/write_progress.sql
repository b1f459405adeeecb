-- Write the progress reports in the JSON array $1, of jobs that their pool still has locked, and
-- delete the rows of jobs $2, whose run by pools $3 ended.
with deleted as (
  delete from :ext_schema.progress as progress
  using rows from (pg_catalog.unnest($2::bigint[]), pg_catalog.unnest($3::text[])) as ended (job_id, pool_id)
  where progress.job_id = ended.job_id
    and progress.pool_id = ended.pool_id
)
insert into :ext_schema.progress as progress (job_id, pool_id, fraction, message, updated_at)
select
  report.id,
  report.pool,
  report.fraction,
  report.message,
  pg_catalog.now() - report.age::float8 * interval '1 microsecond'
from pg_catalog.json_to_recordset($1::text::json) as report (
  id bigint,
  pool text,
  fraction float8,
  message text,
  age bigint
)
join :schema._private_jobs as jobs on jobs.id = report.id and jobs.locked_by = report.pool
-- In this order in all pools, so that they cannot block each other.
order by report.id
on conflict (job_id) do update
set pool_id = excluded.pool_id,
    fraction = excluded.fraction,
    message = excluded.message,
    updated_at = excluded.updated_at
-- Another pool may have claimed the job and reported since this statement started.
where progress.pool_id = excluded.pool_id
  or progress.updated_at <= excluded.updated_at;
