-- Add the jobs of the JSON array $1 for the minute $2, unless another worker added those of an
-- item. Returns which were added. The row of an item is the lock that workers of all languages
-- share.
with due as (
  select
    identifier,
    task,
    payload,
    queue_name,
    max_attempts,
    job_key,
    job_key_mode,
    priority,
    position
  from rows from (
    pg_catalog.json_to_recordset($1::text::json) as (
      identifier text,
      task text,
      payload text,
      queue_name text,
      max_attempts smallint,
      job_key text,
      job_key_mode text,
      priority smallint
    )
  ) with ordinality as item (
    identifier,
    task,
    payload,
    queue_name,
    max_attempts,
    job_key,
    job_key_mode,
    priority,
    position
  )
), acquired as (
  insert into :schema._private_known_crontabs as known (identifier, known_since, last_execution)
  select identifier, $2::text::timestamptz, $2::text::timestamptz
  from due
  -- A minute in the future would keep all workers from the minutes before it.
  where $2::text::timestamptz <= pg_catalog.clock_timestamp()
  -- In the order of Graphile Worker for Node, so that workers with the same crontab do not deadlock.
  order by position
  on conflict (identifier) do update
  set last_execution = excluded.last_execution
  where known.last_execution is null
    or known.last_execution < excluded.last_execution
  returning known.identifier
), added as (
  select next.identifier, jobs.id
  from (
    select
      due.identifier,
      due.task,
      due.payload,
      due.queue_name,
      due.max_attempts,
      due.job_key,
      due.job_key_mode,
      due.priority
    from due
    inner join acquired on acquired.identifier = due.identifier
    order by due.position
    -- The order in which they are added.
    offset 0
  ) as next
  cross join lateral :schema.add_job(
    identifier => next.task,
    payload => next.payload::json,
    queue_name => next.queue_name,
    run_at => $2::text::timestamptz,
    max_attempts => next.max_attempts,
    job_key => next.job_key,
    priority => next.priority,
    job_key_mode => coalesce(next.job_key_mode, 'replace')
  ) as jobs
)
select identifier, id
from added
-- A key whose job is being claimed has no id: then the statement fails, and is retried.
where 1 / (select case when pg_catalog.count(id) = pg_catalog.count(*) then 1 else 0 end from added) = 1;
