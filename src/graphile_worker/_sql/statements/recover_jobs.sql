-- Take all that pools $1 have locked from those of them that are silent, or from all of them if $4
-- says that they are dead; the jobs, with whose they were and what became of each. Each waits for
-- another $2 microseconds; one that was running at $3 recoveries is quarantined.
with gone as (
  update :ext_schema.pools as pools
  set swept_at = coalesce(pools.swept_at, pg_catalog.now())
  where pools.id = any ($1::text[])
    and ($4::boolean or pools.seen_at < pg_catalog.now() - pools.lease)
  returning pools.id, pools.started_jobs
), owners as (
  select gone.id, gone.started_jobs
  from gone
  union all
  -- Somebody who is not ours: nobody knows what was started.
  select stranger.id, null
  from pg_catalog.unnest($1::text[]) as stranger (id)
  where $4::boolean
    and not exists (select from gone where gone.id = stranger.id)
), queues as (
  select job_queues.id
  from :schema._private_job_queues as job_queues
  where job_queues.locked_by = any (array(select id from owners))
  -- One that somebody else has locked is for the next time: others must not wait for it.
  for update skip locked
), get_busy_queue_ids as (
  select job_queues.id
  from :schema._private_job_queues as job_queues
  where job_queues.locked_by = any (array(select id from owners))
    and job_queues.id <> all (array(select id from queues))
), held as materialized (
  -- Said as a comparison, so that the index gwpy_locked_jobs leaves out what was never locked.
  select jobs.id, jobs.job_queue_id
  from :schema._private_jobs as jobs
  where jobs.locked_at > '-infinity'::timestamptz
    and jobs.locked_by = any (array(select id from owners))
), taken as (
  select
    jobs.id,
    jobs.locked_by,
    case
      when owners.started_jobs is not null then
        jobs.id = any (owners.started_jobs)
        or (
          recoveries.started_by is not distinct from jobs.locked_by
          and recoveries.started_attempt is not distinct from jobs.attempts
        )
    end as was_started,
    coalesce(recoveries.count, 0) as count_before,
    :is_superseded as is_superseded
  from :schema._private_jobs as jobs
  join owners on owners.id = jobs.locked_by
  left join :ext_schema.recoveries as recoveries on recoveries.job_id = jobs.id
  where jobs.id = any (array(select id from held))
    -- A job and its named queue are released together, or neither is.
    and (
      jobs.job_queue_id is null
      or jobs.job_queue_id <> all (array(select id from get_busy_queue_ids))
    )
  for update of jobs skip locked
), kept as (
  select held.job_queue_id
  from held
  where held.job_queue_id is not null
    and held.id <> all (array(select id from taken))
), judged as (
  select
    taken.id,
    taken.locked_by,
    taken.was_started,
    taken.count_before + coalesce(taken.was_started, false)::int as count,
    taken.was_started is true and taken.count_before + 1 >= $3::int as is_quarantined,
    -- Removed or replaced by its key before it could start: it will never run.
    taken.was_started is false and taken.is_superseded as is_removed
  from taken
), noted as (
  insert into :ext_schema.recoveries (job_id, count)
  -- Whoever lets a quarantined job run again begins to count anew.
  select judged.id, case when judged.is_quarantined then 0 else judged.count end
  from judged
  where not judged.is_removed
  on conflict (job_id) do update
  set count = excluded.count,
      recovered_at = excluded.recovered_at,
      started_by = null,
      started_attempt = null
), removed as (
  delete from :schema._private_jobs as jobs
  where jobs.id = any (array(select id from judged where is_removed))
), jobs as (
  update :schema._private_jobs as jobs
  set attempts = case
        when :is_superseded then jobs.attempts
        when judged.is_quarantined then jobs.max_attempts
        when judged.was_started is false then greatest(0, jobs.attempts - 1)
        else greatest(0, least(jobs.attempts, jobs.max_attempts - 1))
      end,
      run_at = case
        when $2::bigint > 0 then greatest(
          jobs.run_at,
          pg_catalog.now() + $2::bigint::float8 * interval '1 microsecond'
        )
        else jobs.run_at
      end,
      -- Begins like what Rust workers write; see _sql/queries/workers.py.
      last_error = 'Job recovered after worker interruption: ' || case
        when judged.is_quarantined then
          'quarantined, as it was running at ' || judged.count::text || ' recoveries, last in pool '
        when judged.was_started is false then 'it was fetched, not started, by pool '
        else 'it was held by pool '
      end || judged.locked_by,
      locked_by = null,
      locked_at = null
  from judged
  where jobs.id = judged.id
    -- An array beside the join, for the plan's sake: see claim_jobs.
    and jobs.id = any (array(select id from judged where not is_removed))
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
), freed as (
  update :schema._private_job_queues as job_queues
  set locked_by = null,
      locked_at = null
  where job_queues.id = any (array(select id from queues))
    and job_queues.id <> all (array(select job_queue_id from kept))
)
select
  jobs.id,
  tasks.identifier,
  job_queues.queue_name,
  :job_columns,
  judged.locked_by,
  judged.was_started,
  judged.count,
  judged.is_quarantined
from jobs
join judged on judged.id = jobs.id
left join :schema._private_tasks as tasks on tasks.id = jobs.task_id
left join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
order by jobs.id;
