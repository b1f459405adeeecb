-- Delete all jobs if there are $1 at most; says how many there are, counted up to one more.
with counted as (
  select count(*) as count
  from (
    select
    from :schema._private_jobs
    limit $1::int + 1
  ) as job
), deleted as (
  delete from :schema._private_jobs as jobs
  where (select count from counted) <= $1::int
)
select count from counted;
