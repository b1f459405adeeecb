-- Take jobs as get_jobs does, if all that are ready among the soonest are plain: ours, and in no queue.
--
-- That is so nearly always, and then this takes a third of the time. An empty answer says nothing:
-- ask get_jobs. The steps are written as they are for the same reasons as there.
with :given,
:soonest_jobs,
seen as (
  -- In one go, and in their order: to keep them and sort them again would take as long as to lock
  -- them.
  select
    bool_and(
      job_queue_id is null
      and is_allowed
      and task_id = any ((select tasks from given)::int[])
    ) as all_are_plain,
    array_agg(priority) as priorities,
    array_agg(run_at) as times,
    count(*)::int as count
  from soonest
  where run_at <= (select moment from given)
), plain as (
  -- They are locked as they are read, which is the cheapest of all ways. From the first on, as before
  -- it the index may hold thousands that are gone, and none that was not looked at.
  select job.id
  from (
    select jobs.id, jobs.task_id, jobs.flags
    from :schema._private_jobs as jobs
    where (select all_are_plain from seen)
      and jobs.is_available = true
      and jobs.job_queue_id is null
      and row(jobs.priority, jobs.run_at) >= row(
        (select priorities[1] from seen),
        (select times[1] from seen)
      )
      and row(jobs.priority, jobs.run_at) <= row(
        (select priorities[count] from seen),
        (select times[count] from seen)
      )
      and jobs.run_at <= (select moment from given)
    order by jobs.priority, jobs.run_at
    limit 2550
    for update skip locked
  ) as job
  where job.task_id = any ((select tasks from given)::int[])
    and (job.flags ?| (select flags from given)) is not true
  -- No more of them are locked than this.
  limit (select wanted from given)
)
update :schema._private_jobs as jobs
set attempts = jobs.attempts + 1,
    locked_by = $1::text,
    locked_at = (select moment from given)
where jobs.id = any (array(select id from plain))
-- In no order: whoever reads them sorts them, which is cheaper than to keep them all for it here.
returning
  jobs.id,
  jobs.task_id,
  null::text,
  :taken_columns,
  jobs.job_queue_id;
