-- Hand back all that pool $1 has locked without knowing it: jobs but $2, named queues but $3; which
-- jobs. For after a fetch whose answer got lost, so nothing of it has started. Reads the whole table.
with returned as (
  update :schema._private_jobs as jobs
  set attempts = case
        when :is_superseded then jobs.attempts
        else greatest(0, jobs.attempts - 1)
      end,
      locked_by = null,
      locked_at = null
  where jobs.locked_by = $1::text
    and jobs.id <> all ($2::bigint[])
  returning jobs.id
), freed as (
  update :schema._private_job_queues as job_queues
  set locked_by = null,
      locked_at = null
  where job_queues.locked_by = $1::text
    and job_queues.id <> all ($3::int[])
)
select id from returned;
