-- Delete the jobs without attempts left, and add entries with actor $1, action $2 and filter $3 to the
-- audit. Returns how many jobs.
with deleted as (
  delete from :schema._private_jobs as jobs
  where jobs.attempts >= jobs.max_attempts
    and jobs.locked_at is null
  returning jobs.id
), numbered as (
  select
    deleted.id,
    (pg_catalog.row_number() over (order by deleted.id) - 1) / 1000 as batch
  from deleted
), entries as (
  insert into :ext_schema.audit (actor, action, filter, job_ids, count)
  select
    $1::text,
    $2::text,
    $3::text,
    pg_catalog.array_agg(numbered.id order by numbered.id),
    pg_catalog.count(*)
  from numbered
  group by numbered.batch
  order by numbered.batch
)
select pg_catalog.count(*) from deleted;
