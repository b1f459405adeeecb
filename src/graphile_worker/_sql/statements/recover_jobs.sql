-- Take over the locks of the dead ones among pools $1, or of all of them if $4. Returns the jobs,
-- with the pool that had them and what happens to each. Each runs $2 microseconds from now at the
-- earliest. A job that was running at $3 recoveries is quarantined.
with dead as (
  update :ext_schema.pools as pools
  set swept_at = coalesce(pools.swept_at, pg_catalog.now())
  where pools.id = any ($1::text[])
    and ($4::boolean or pools.seen_at < pg_catalog.now() - pools.lease)
  returning pools.id, pools.started_jobs
), owners as (
  select dead.id, dead.started_jobs
  from dead
  union all
  -- Pools of other implementations do not record which jobs they have started.
  select unregistered.id, null
  from pg_catalog.unnest($1::text[]) as unregistered (id)
  where $4::boolean
    and not exists (select from dead where dead.id = unregistered.id)
), queues as (
  select job_queues.id
  from :schema._private_job_queues as job_queues
  where job_queues.locked_by = any (array(select id from owners))
  -- The next rescue takes rows that another session has locked. This one must not wait for them.
  for update skip locked
), busy_queues as (
  select job_queues.id
  from :schema._private_job_queues as job_queues
  where job_queues.locked_by = any (array(select id from owners))
    and job_queues.id <> all (array(select id from queues))
), locked as materialized (
  -- A comparison, so that the index gwpy_locked_jobs skips ranges without locked rows.
  select jobs.id, jobs.job_queue_id
  from :schema._private_jobs as jobs
  where jobs.locked_at > '-infinity'::timestamptz
    and jobs.locked_by = any (array(select id from owners))
), recovered as (
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
  where jobs.id = any (array(select id from locked))
    -- A job and its named queue are released together, or neither is.
    and (
      jobs.job_queue_id is null
      or jobs.job_queue_id <> all (array(select id from busy_queues))
    )
  for update of jobs skip locked
), queues_to_keep as (
  select locked.job_queue_id
  from locked
  where locked.job_queue_id is not null
    and locked.id <> all (array(select id from recovered))
), outcomes as (
  select
    recovered.id,
    recovered.locked_by,
    recovered.was_started,
    recovered.count_before + coalesce(recovered.was_started, false)::int as count,
    recovered.was_started is true and recovered.count_before + 1 >= $3::int as is_quarantined,
    -- Removed or replaced by its key before it could start: it never runs.
    recovered.was_started is false and recovered.is_superseded as is_removed
  from recovered
), recorded as (
  insert into :ext_schema.recoveries (job_id, count)
  -- A quarantined job that is retried starts with a count of 0.
  select outcomes.id, case when outcomes.is_quarantined then 0 else outcomes.count end
  from outcomes
  where not outcomes.is_removed
  on conflict (job_id) do update
  set count = excluded.count,
      recovered_at = excluded.recovered_at,
      started_by = null,
      started_attempt = null
), removed as (
  delete from :schema._private_jobs as jobs
  where jobs.id = any (array(select id from outcomes where is_removed))
), jobs as (
  update :schema._private_jobs as jobs
  set attempts = case
        when :is_superseded then jobs.attempts
        when outcomes.is_quarantined then jobs.max_attempts
        when outcomes.was_started is false then greatest(0, jobs.attempts - 1)
        else greatest(0, least(jobs.attempts, jobs.max_attempts - 1))
      end,
      run_at = :delayed_run_at,
      -- Starts like the error of Rust workers: see _sql/queries/workers.py.
      last_error = 'Job recovered after worker interruption: ' || case
        when outcomes.is_quarantined then
          'quarantined, as it was running at ' || outcomes.count::text || ' recoveries, last in pool '
        when outcomes.was_started is false then 'it was fetched, not started, by pool '
        else 'it was held by pool '
      end || outcomes.locked_by,
      locked_by = null,
      locked_at = null
  from outcomes
  where jobs.id = outcomes.id
    -- An array beside the join, for the planner: see claim_jobs.
    and jobs.id = any (array(select id from outcomes where not is_removed))
  returning :stored_columns
), unlocked_queues as (
  update :schema._private_job_queues as job_queues
  set locked_by = null,
      locked_at = null
  where job_queues.id = any (array(select id from queues))
    and job_queues.id <> all (array(select job_queue_id from queues_to_keep))
)
select
  jobs.id,
  tasks.identifier,
  job_queues.queue_name,
  :job_columns,
  outcomes.locked_by,
  outcomes.was_started,
  outcomes.count,
  outcomes.is_quarantined
from jobs
join outcomes on outcomes.id = jobs.id
left join :schema._private_tasks as tasks on tasks.id = jobs.task_id
left join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id
order by jobs.id;
