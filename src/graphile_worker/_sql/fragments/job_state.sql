-- The state of a job: see ops/states.py. Pools $1 are dead.
case
  when jobs.locked_at is not null then
    case
      when jobs.locked_at < pg_catalog.now() - interval '4 hours' or jobs.locked_by = any ($1::text[])
        then 'stale'
      else 'running'
    end
  when jobs.attempts >= jobs.max_attempts then 'failed'
  when jobs.run_at > pg_catalog.now() then
    case when jobs.attempts > 0 then 'retrying' else 'scheduled' end
  when jobs.job_queue_id in (
    select held_queues.id
    from :schema._private_job_queues as held_queues
    where held_queues.locked_at is not null
  ) then 'waiting'
  else 'ready'
end
