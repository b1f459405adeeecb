-- The two functions that add jobs, as of level 20: names already known cost no sequence value.
create or replace function :schema.add_jobs(
  specs :schema.job_spec[],
  job_key_preserve_run_at boolean default false
)
returns setof :schema._private_jobs
language plpgsql
as $gw$
begin
  insert into :schema._private_tasks (identifier)
  select distinct spec.identifier
  from pg_catalog.unnest(specs) as spec
  where not exists (
    select from :schema._private_tasks as tasks where tasks.identifier = spec.identifier
  )
  on conflict do nothing;

  insert into :schema._private_job_queues (queue_name)
  select distinct spec.queue_name
  from pg_catalog.unnest(specs) as spec
  where spec.queue_name is not null
    and not exists (
      select from :schema._private_job_queues as job_queues
      where job_queues.queue_name = spec.queue_name
    )
  on conflict do nothing;

  -- A job that runs, or will never run again, gives its key to its successor.
  update :schema._private_jobs as jobs
  set key = null,
      attempts = jobs.max_attempts,
      updated_at = pg_catalog.now()
  from pg_catalog.unnest(specs) as spec
  where spec.job_key is not null
    and jobs.key = spec.job_key
    and jobs.is_available is not true;

  -- The random number keeps PostgreSQL from folding equal messages of one transaction into one.
  perform pg_catalog.pg_notify(
    'jobs:insert',
    case
      when pg_catalog.cardinality(specs) > 0
        then pg_catalog.json_build_object(
          'r', pg_catalog.random(), 'count', pg_catalog.cardinality(specs)
        )::text
      else ''
    end
  );

  return query
  insert into :schema._private_jobs as jobs
    (job_queue_id, task_id, payload, run_at, max_attempts, key, priority, flags)
  select
    job_queues.id,
    tasks.id,
    coalesce(spec.payload, '{}'::json),
    coalesce(spec.run_at, pg_catalog.now()),
    coalesce(spec.max_attempts, 25::smallint),
    spec.job_key,
    coalesce(spec.priority, 0::smallint),
    (select pg_catalog.jsonb_object_agg(flag, true) from pg_catalog.unnest(spec.flags) as flag)
  from pg_catalog.unnest(specs) with ordinality as spec
    (identifier, payload, queue_name, run_at, max_attempts, job_key, priority, flags, position)
  join :schema._private_tasks as tasks on tasks.identifier = spec.identifier
  left join :schema._private_job_queues as job_queues on job_queues.queue_name = spec.queue_name
  -- Equal jobs run in the order of their ids, so the ids follow the order of the specs.
  order by spec.position
  on conflict (key) do update
  set job_queue_id = excluded.job_queue_id,
      task_id = excluded.task_id,
      payload = case
        when pg_catalog.json_typeof(jobs.payload) = 'array'
          and pg_catalog.json_typeof(excluded.payload) = 'array'
          then (jobs.payload::jsonb || excluded.payload::jsonb)::json
        else excluded.payload
      end,
      run_at = case
        when job_key_preserve_run_at is true and jobs.attempts = 0 then jobs.run_at
        else excluded.run_at
      end,
      max_attempts = excluded.max_attempts,
      priority = excluded.priority,
      flags = excluded.flags,
      revision = jobs.revision + 1,
      attempts = 0,
      last_error = null,
      updated_at = pg_catalog.now()
  where jobs.locked_at is null
  returning jobs.*;
end;
$gw$;

create or replace function :schema.add_job(
  identifier text,
  payload json default null,
  queue_name text default null,
  run_at timestamptz default null,
  max_attempts integer default null,
  job_key text default null,
  priority integer default null,
  flags text[] default null,
  job_key_mode text default 'replace'
)
returns :schema._private_jobs
language plpgsql
as $gw$
declare
  added :schema._private_jobs;
begin
  if job_key is null or coalesce(job_key_mode, 'replace') in ('replace', 'preserve_run_at') then
    select jobs.* into added
    from :schema.add_jobs(
      array[
        cast(
          row(
            add_job.identifier,
            add_job.payload,
            add_job.queue_name,
            add_job.run_at,
            add_job.max_attempts::smallint,
            add_job.job_key,
            add_job.priority::smallint,
            add_job.flags
          ) as :schema.job_spec
        )
      ],
      coalesce(job_key_mode = 'preserve_run_at', false)
    ) as jobs
    limit 1;
    return added;
  end if;

  if job_key_mode <> 'unsafe_dedupe' then
    raise exception using
      errcode = 'GWBKM',
      message = 'Invalid job_key_mode: expected replace, preserve_run_at or unsafe_dedupe';
  end if;

  insert into :schema._private_tasks (identifier)
  select add_job.identifier
  where not exists (
    select from :schema._private_tasks as tasks where tasks.identifier = add_job.identifier
  )
  on conflict do nothing;

  insert into :schema._private_job_queues (queue_name)
  select add_job.queue_name
  where add_job.queue_name is not null
    and not exists (
      select from :schema._private_job_queues as job_queues
      where job_queues.queue_name = add_job.queue_name
    )
  on conflict do nothing;

  insert into :schema._private_jobs as jobs
    (job_queue_id, task_id, payload, run_at, max_attempts, key, priority, flags)
  select
    job_queues.id,
    tasks.id,
    coalesce(add_job.payload, '{}'::json),
    coalesce(add_job.run_at, pg_catalog.now()),
    coalesce(add_job.max_attempts::smallint, 25::smallint),
    add_job.job_key,
    coalesce(add_job.priority::smallint, 0::smallint),
    (select pg_catalog.jsonb_object_agg(flag, true) from pg_catalog.unnest(add_job.flags) as flag)
  from :schema._private_tasks as tasks
  left join :schema._private_job_queues as job_queues
    on job_queues.queue_name = add_job.queue_name
  where tasks.identifier = add_job.identifier
  on conflict (key) do update
  set revision = jobs.revision + 1,
      updated_at = pg_catalog.now()
  returning jobs.* into added;

  -- Only a job that was not there before is news to the workers.
  if added.revision = 0 then
    perform pg_catalog.pg_notify(
      'jobs:insert',
      pg_catalog.json_build_object('r', pg_catalog.random(), 'count', 1)::text
    );
  end if;

  return added;
end;
$gw$;
