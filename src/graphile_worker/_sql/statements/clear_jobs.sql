-- Delete all jobs and unlock all named queues, if there are at most $1 jobs. Returns the number of
-- jobs, counted up to $1 + 1.
with counted as (
  select pg_catalog.count(*) as count
  from (
    select
    from :schema._private_jobs
    limit $1::int + 1
  ) as job
), deleted as (
  delete from :schema._private_jobs as jobs
  where (select count from counted) <= $1::int
), unlocked_queues as (
  update :schema._private_job_queues as job_queues
  set locked_by = null,
      locked_at = null
  where job_queues.locked_at is not null
    and (select count from counted) <= $1::int
)
select count from counted;
