-- Lock the best candidates and take them; the end of a fetch.
best as (
  select id, job_queue_id
  from candidates
  limit (select wanted from given)
), locked_queues as (
  select job_queues.id
  from :schema._private_job_queues as job_queues
  where job_queues.id = any (array(select job_queue_id from best where job_queue_id is not null))
    and job_queues.is_available = true
  for update skip locked
), locked_jobs as (
  select jobs.id, jobs.job_queue_id
  from :schema._private_jobs as jobs
  -- An array, not a join: with the statistics of an empty table a join reads the whole primary key.
  -- And not false rather than true: with the same statistics an index of what is available would seem
  -- better than the primary key.
  where jobs.id = any (array(
      select id
      from best
      where job_queue_id is null
      union all
      select best.id
      from best
      join locked_queues on locked_queues.id = best.job_queue_id
    ))
    and jobs.is_available is not false
    and jobs.run_at <= (select moment from given)
    and jobs.task_id = any ((select tasks from given)::int[])
    and (jobs.flags ?| (select flags from given)) is not true
  for update skip locked
), together as (
  -- What is in another queue since it was found is left alone.
  select locked_jobs.id, locked_jobs.job_queue_id
  from locked_jobs
  join best on best.id = locked_jobs.id
  where best.job_queue_id is not distinct from locked_jobs.job_queue_id
), one_by_one as (
  -- Others were faster with all of those: go on with the other candidates, until there are enough.
  select id, job_queue_id
  from (
    select job.id, job.job_queue_id
    from candidates as job
    where (select not exists (select from together))
      and case
        when job.job_queue_id is null or exists (
          select
          from :schema._private_job_queues as job_queues
          where job_queues.id = job.job_queue_id
            and job_queues.is_available = true
          for update skip locked
        ) then exists (
          select
          from :schema._private_jobs as jobs
          where jobs.id = job.id
            and jobs.is_available is not false
            and jobs.run_at <= (select moment from given)
            and jobs.task_id = any ((select tasks from given)::int[])
            and (jobs.flags ?| (select flags from given)) is not true
            and jobs.job_queue_id is not distinct from job.job_queue_id
          for update skip locked
        )
        else false
      end
    limit 200
  ) as job
  limit (select wanted from given)
), at_last as (
  -- Others were faster with every candidate: go through all there is, also what stands behind the
  -- first job of a queue.
  select id, job_queue_id, priority, run_at
  from (
    select job.id, job.job_queue_id, job.priority, job.run_at
    from (
      select jobs.id, jobs.job_queue_id, jobs.priority, jobs.run_at
      from :schema._private_jobs as jobs
      where (
          select not exists (select from together)
            and exists (select from candidates)
            and not exists (select from one_by_one)
        )
        and jobs.is_available = true
        and jobs.run_at <= (select moment from given)
        and jobs.task_id = any ((select tasks from given)::int[])
        and (jobs.flags ?| (select flags from given)) is not true
      order by jobs.priority, jobs.run_at
      offset 0
    ) as job
    where case
      when job.job_queue_id is null or exists (
        select
        from :schema._private_job_queues as job_queues
        where job_queues.id = job.job_queue_id
          and job_queues.is_available = true
        for update skip locked
      ) then exists (
        select
        from :schema._private_jobs as jobs
        where jobs.id = job.id
          and jobs.is_available is not false
          and jobs.run_at <= (select moment from given)
          and jobs.task_id = any ((select tasks from given)::int[])
          and (jobs.flags ?| (select flags from given)) is not true
          and jobs.job_queue_id is not distinct from job.job_queue_id
        for update skip locked
      )
      else false
    end
    limit 200
  ) as job
  limit (select wanted from given)
), taken as (
  select id, job_queue_id
  from together
  union all
  select id, job_queue_id
  from one_by_one
  union all
  (
    select distinct on (coalesce(-job_queue_id, id)) id, job_queue_id
    from at_last
    order by coalesce(-job_queue_id, id), priority, run_at, id
  )
), queues as (
  update :schema._private_job_queues as job_queues
  set locked_by = $1::text,
      locked_at = (select moment from given)
  where job_queues.id = any (array(select job_queue_id from taken where job_queue_id is not null))
)
update :schema._private_jobs as jobs
set attempts = jobs.attempts + 1,
    locked_by = $1::text,
    locked_at = (select moment from given)
where jobs.id = any (array(select id from taken))
-- In no order: whoever reads them sorts them, which is cheaper than to keep them all for it here.
returning
  jobs.id,
  jobs.task_id,
  (
    select job_queues.queue_name
    from :schema._private_job_queues as job_queues
    where job_queues.id = jobs.job_queue_id
  ),
  :job_columns,
  jobs.job_queue_id
