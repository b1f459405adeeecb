-- Take jobs as get_jobs does, from a schema that lacks its indexes: right, and as fast as can be.
--
-- The steps are those of get_jobs. What is not found among the soonest jobs is searched for in all.
with given as materialized (
  select
    least($4::int, 2000) as wanted,
    least($4::int, 2000) * 5 / 4 + 50 as enough,
    $2::int[] as tasks,
    $3::text[] as flags,
    coalesce($5::text::timestamptz, now()) as moment
), soonest as (
  -- Whoever's they are, and even if their time has not come.
  select id, task_id, job_queue_id, priority, run_at, is_allowed
  from (
    select
      jobs.id,
      jobs.task_id,
      jobs.job_queue_id,
      jobs.priority,
      jobs.run_at,
      (jobs.flags ?| (select flags from given)) is not true as is_allowed
    from :schema._private_jobs as jobs
    where jobs.is_available = true
    order by jobs.priority, jobs.run_at
    limit 2550
  ) as job
  limit (select enough from given)
), near as (
  -- In their order, so that no more queues are looked at than are needed.
  select job.id, job.job_queue_id, job.priority, job.run_at
  from (
    select id, job_queue_id, priority, run_at
    from soonest
    where run_at <= (select moment from given)
      and task_id = any ((select tasks from given)::int[])
      and is_allowed
    order by priority, run_at, id
    offset 0
  ) as job
  -- One job of a named queue at a time.
  where case
    when job.job_queue_id is null then true
    when job.id in (
      select distinct on (first.job_queue_id) first.id
      from soonest as first
      where first.job_queue_id is not null
        and first.run_at <= (select moment from given)
        and first.task_id = any ((select tasks from given)::int[])
        and first.is_allowed
      order by first.job_queue_id, first.priority, first.run_at, first.id
    ) then (
      select job_queues.is_available
      from :schema._private_job_queues as job_queues
      where job_queues.id = job.job_queue_id
    )
    else false
  end
), near_fails as (
  select
    (select count(*) from soonest) = enough
    and (
      select count(*) from (select from near limit (select wanted from given)) as found
    ) < wanted as yes
  from given
), queues_are_small as (
  -- To read all of them is then less than to find thousands one by one.
  select coalesce((
    select pg_relation_size(job_queues.tableoid) <= 4000000
    from :schema._private_job_queues as job_queues
    limit 1
  ), true) as yes
), free as (
  -- The reference has an index for these.
  select id, job_queue_id, priority, run_at
  from (
    select job.id, job.job_queue_id, job.priority, job.run_at
    from (
      select jobs.id, jobs.job_queue_id, jobs.priority, jobs.run_at
      from :schema._private_jobs as jobs
      where (select yes from near_fails)
        and jobs.is_available = true
        and jobs.job_queue_id is null
        and jobs.run_at <= (select moment from given)
        and jobs.task_id = any ((select tasks from given)::int[])
      order by jobs.priority, jobs.run_at
      offset 0
    ) as job
    where (select flags from given) is null or (
      select (jobs.flags ?| (select flags from given)) is not true
      from :schema._private_jobs as jobs
      where jobs.id = job.id
    )
    limit 2550
  ) as job
  limit (select enough from given)
), queued as (
  -- Where no queue is free, nobody needs to look at their jobs.
  select id, job_queue_id, priority, run_at
  from (
    select job.id, job.job_queue_id, job.priority, job.run_at
    from (
      select jobs.id, jobs.job_queue_id, jobs.priority, jobs.run_at
      from :schema._private_jobs as jobs
      where (
          select near_fails.yes
            and exists (select from :schema._private_job_queues where locked_at is null)
          from near_fails
        )
        and jobs.is_available = true
        and jobs.job_queue_id is not null
        and jobs.run_at <= (select moment from given)
        and jobs.task_id = any ((select tasks from given)::int[])
      order by jobs.priority, jobs.run_at
      offset 0
    ) as job
    where case
        when (select yes from queues_are_small) then job.job_queue_id in (
          select job_queues.id
          from :schema._private_job_queues as job_queues
          where job_queues.locked_at is null
        )
        else (
          select job_queues.is_available
          from :schema._private_job_queues as job_queues
          where job_queues.id = job.job_queue_id
        )
      end
      and ((select flags from given) is null or (
        select (jobs.flags ?| (select flags from given)) is not true
        from :schema._private_jobs as jobs
        where jobs.id = job.id
      ))
    limit 2550
  ) as job
  limit (select enough from given)
), horizon as (
  -- The queued ones go on behind what was read of them: what comes after that is in no certain order.
  select id, priority, run_at
  from queued
  offset (select enough - 1 from given)
  limit 1
), rest_heads as (
  select distinct on (coalesce(-job.job_queue_id, job.id))
    job.id,
    job.job_queue_id,
    job.priority,
    job.run_at
  from (
    select id, job_queue_id, priority, run_at
    from free
    union all
    select id, job_queue_id, priority, run_at
    from queued
  ) as job
  left join horizon on true
  where horizon.id is null
    or row(job.priority, job.run_at) <= row(horizon.priority, horizon.run_at)
  order by coalesce(-job.job_queue_id, job.id), job.priority, job.run_at, job.id
), candidates as (
  -- One of these is empty. Read only as far as they are needed.
  select id, job_queue_id, priority, run_at
  from near
  where (select not yes from near_fails)
  union all
  (
    select id, job_queue_id, priority, run_at
    from rest_heads
    order by priority, run_at, id
  )
), best as (
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
  returning job_queues.id, job_queues.queue_name
), jobs as (
  update :schema._private_jobs as jobs
  set attempts = jobs.attempts + 1,
      locked_by = $1::text,
      locked_at = (select moment from given)
  where jobs.id = any (array(select id from taken))
  returning
    jobs.id,
    jobs.task_id,
    jobs.job_queue_id,
    jobs.payload,
    jobs.priority,
    jobs.run_at,
    jobs.attempts,
    jobs.max_attempts,
    jobs.last_error,
    jobs.created_at,
    jobs.updated_at,
    jobs.key,
    jobs.locked_at,
    jobs.locked_by,
    jobs.revision,
    jobs.flags
)
select
  jobs.id,
  jobs.task_id,
  queues.queue_name,
  :job_columns,
  jobs.job_queue_id
from jobs
left join queues on queues.id = jobs.job_queue_id
order by jobs.priority, jobs.run_at, jobs.id;
