-- The only function that enqueuers can call. Idempotent.
set role queue_api;

-- Which role can add which tasks, and within which limits. Low priority numbers run first.
create table if not exists graphile_worker_api.allowed_tasks (
  caller name not null,
  task_identifier text not null,
  max_payload_bytes integer not null default 65536,
  best_priority smallint not null default 0,
  most_attempts smallint not null default 25,
  longest_delay interval not null default interval '30 days',
  primary key (caller, task_identifier)
);

-- A row creates the name of its task, which enqueuers cannot do: a name added in a transaction that
-- stays open would block every other program that adds it.
create or replace function graphile_worker_api.create_task()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $body$
begin
  insert into graphile_worker._private_tasks (identifier)
  select new.task_identifier
  where not exists (
    select from graphile_worker._private_tasks as tasks
    where tasks.identifier = new.task_identifier
  )
  on conflict do nothing;
  return null;
end;
$body$;

create or replace trigger create_task
after insert or update on graphile_worker_api.allowed_tasks
for each row execute function graphile_worker_api.create_task();

-- For rows from before, and for names that a cleanup deleted.
update graphile_worker_api.allowed_tasks set task_identifier = task_identifier;

-- The signature of an earlier version.
drop function if exists graphile_worker_api.enqueue(
  text, json, text, timestamptz, integer, text, integer, text
);

create or replace function graphile_worker_api.enqueue(
  task_identifier text,
  payload json default '{}',
  queue_name text default null,
  run_at timestamptz default null,
  max_attempts integer default null,
  job_key text default null,
  priority integer default null,
  job_key_mode text default 'replace',
  unique_key text default null,
  unique_for interval default null
)
returns bigint
language plpgsql
security definer
-- Ignore the caller's search path, so that none of its functions, operators or tables are used.
-- pg_temp is last: if it were missing, it would be searched first.
set search_path = pg_catalog, pg_temp
as $body$
declare
  -- The role that logged in: the current user is the owner of this function. With the colon, no
  -- prefix is the beginning of another one.
  prefix constant text := pg_catalog.quote_ident(session_user) || ':';
  allowed graphile_worker_api.allowed_tasks;
  job_id bigint;
begin
  select tasks.* into allowed
  from graphile_worker_api.allowed_tasks as tasks
  where tasks.caller = session_user
    and tasks.task_identifier = enqueue.task_identifier;

  if not found then
    raise exception 'role % may not add jobs of this task', session_user using errcode = '42501';
  end if;
  if not exists (
    select from graphile_worker._private_tasks as tasks
    where tasks.identifier = enqueue.task_identifier
  ) then
    raise exception 'the name of this task was deleted: start its worker, or run enqueue.sql again'
      using errcode = '42704';
  end if;
  if pg_catalog.octet_length(payload::text) > allowed.max_payload_bytes then
    raise exception 'the payload is larger than % bytes', allowed.max_payload_bytes
      using errcode = '54000';
  end if;
  -- Arrays with the same key are joined, which would exceed the limit.
  if job_key is not null and pg_catalog.json_typeof(payload) = 'array' then
    raise exception 'a job with a key may not have an array as its payload' using errcode = '22023';
  end if;
  if greatest(pg_catalog.length(prefix || job_key), pg_catalog.length(prefix || unique_key)) > 512
    or pg_catalog.length(prefix || queue_name) > 128
  then
    raise exception 'the key or the name of the queue is too long' using errcode = '22001';
  end if;

  queue_name := prefix || queue_name;
  run_at := least(greatest(run_at, pg_catalog.now()), pg_catalog.now() + allowed.longest_delay);
  max_attempts := least(greatest(coalesce(max_attempts, 25), 1), allowed.most_attempts);
  priority := least(greatest(coalesce(priority, 0), allowed.best_priority), 32767);

  -- The new job, or the earlier one if the window of the key is open.
  if unique_key is not null then
    if unique_for is null or job_key is not null then
      raise exception 'unique_key needs unique_for, and no job_key' using errcode = '22023';
    end if;
    select jobs.job_id into job_id
    from graphile_worker_ext.add_unique_job(
      identifier => enqueue.task_identifier,
      payload => enqueue.payload,
      unique_key => prefix || enqueue.unique_key,
      unique_for => least(enqueue.unique_for, allowed.longest_delay),
      queue_name => enqueue.queue_name,
      run_at => enqueue.run_at,
      max_attempts => enqueue.max_attempts,
      priority => enqueue.priority
    ) as jobs;
    return job_id;
  end if;

  select jobs.id into job_id
  from graphile_worker.add_job(
    identifier => enqueue.task_identifier,
    payload => enqueue.payload,
    queue_name => enqueue.queue_name,
    run_at => enqueue.run_at,
    max_attempts => enqueue.max_attempts,
    job_key => prefix || enqueue.job_key,
    priority => enqueue.priority,
    job_key_mode => enqueue.job_key_mode
  ) as jobs;

  -- A worker claimed the job with this key at the same moment.
  if job_id is null then
    raise exception 'try again' using errcode = '40001';
  end if;
  return job_id;
end;
$body$;

revoke all on function graphile_worker_api.enqueue, graphile_worker_api.create_task from public;
grant usage on schema graphile_worker_api to queue_enqueuer;
grant execute on function graphile_worker_api.enqueue to queue_enqueuer;
reset role;
