-- Unique windows: until when no other job is added with a key, and which job was.
create table if not exists :ext_schema.unique_keys (
  key text constraint unique_keys_pkey primary key
    constraint unique_keys_key_check check (pg_catalog.length(key) between 1 and 512),
  since timestamptz not null,
  until timestamptz not null,
  -- Null only inside the transaction that adds the job.
  job_id bigint
) with (fillfactor = 70);

create index if not exists unique_keys_until on :ext_schema.unique_keys (until);

-- Add the jobs of a JSON array, each unless the window of its key is open. Returns each with its
-- position in the array: the new job, or the earlier one as its row is now. If that row is deleted,
-- only its id is known, and when it was added.
create or replace function :ext_schema.add_unique_jobs(
  specs json,
  -- The time that decides which windows are open. Null: the clock of the server, not the time at
  -- which the transaction began, because a transaction may be longer than a window.
  decided_at timestamptz default null
)
returns table (
  spec_position bigint,
  is_duplicate boolean,
  id bigint,
  task_identifier text,
  queue_name text,
  payload json,
  priority smallint,
  run_at timestamptz,
  attempts smallint,
  max_attempts smallint,
  last_error text,
  created_at timestamptz,
  updated_at timestamptz,
  key text,
  locked_at timestamptz,
  locked_by text,
  revision integer,
  flags jsonb
)
language plpgsql
set search_path = pg_catalog, pg_temp
-- Windows travel as text.
set intervalstyle = 'postgres'
as $gw$
#variable_conflict use_column
declare
  spec record;
  earlier record;
  added_id bigint;
begin
  -- New names before the keys, in one order. add_job would insert them while it has some of the keys,
  -- so two sessions could wait for each other: one for a name, the other for a key. A duplicate adds
  -- no name.
  insert into :schema._private_tasks (identifier)
  select distinct given.identifier
  from pg_catalog.json_to_recordset(specs) as given (identifier text, unique_key text)
  where given.identifier is not null
    and not exists (
      select
      from :schema._private_tasks as tasks
      where tasks.identifier = given.identifier
    )
    and not exists (
      select
      from :ext_schema.unique_keys as keys
      where keys.key = given.unique_key
        and keys.until > coalesce(decided_at, pg_catalog.clock_timestamp())
    )
  order by given.identifier
  on conflict do nothing;
  insert into :schema._private_job_queues (queue_name)
  select distinct given.queue_name
  from pg_catalog.json_to_recordset(specs) as given (queue_name text, unique_key text)
  where given.queue_name is not null
    and not exists (
      select
      from :schema._private_job_queues as job_queues
      where job_queues.queue_name = given.queue_name
    )
    and not exists (
      select
      from :ext_schema.unique_keys as keys
      where keys.key = given.unique_key
        and keys.until > coalesce(decided_at, pg_catalog.clock_timestamp())
    )
  order by given.queue_name
  on conflict do nothing;
  for spec in
    select given.*
    from rows from (
      pg_catalog.json_to_recordset(specs) as (
        identifier text,
        payload text,
        unique_key text,
        unique_for interval,
        queue_name text,
        run_at timestamptz,
        delay bigint,
        max_attempts integer,
        priority integer,
        flags text[]
      )
    ) with ordinality as given (
      identifier,
      payload,
      unique_key,
      unique_for,
      queue_name,
      run_at,
      delay,
      max_attempts,
      priority,
      flags,
      position
    )
    -- Keys in one order in every session: opposite orders would deadlock.
    order by given.unique_key, given.position
  loop
    if spec.unique_for > interval '0' is not true then
      raise exception using
        errcode = '22023',
        message = 'unique_for must be above 0';
    end if;
    added_id := null;
    -- First without a lock, so that transactions that find an open window do not block others.
    select keys.job_id, keys.since into earlier
    from :ext_schema.unique_keys as keys
    where keys.key = spec.unique_key
      and keys.until > coalesce(decided_at, pg_catalog.clock_timestamp());
    if not found then
      -- Waits for a transaction that adds a job with the same key.
      insert into :ext_schema.unique_keys as keys (key, since, until)
      values (
        spec.unique_key,
        coalesce(decided_at, pg_catalog.clock_timestamp()),
        coalesce(decided_at, pg_catalog.clock_timestamp()) + spec.unique_for
      )
      on conflict (key) do update
      set since = coalesce(decided_at, pg_catalog.clock_timestamp()),
          until = coalesce(decided_at, pg_catalog.clock_timestamp()) + spec.unique_for,
          job_id = null
      where keys.until <= coalesce(decided_at, pg_catalog.clock_timestamp());
      if found then
        select jobs.id into added_id
        from :schema.add_job(
          identifier => spec.identifier,
          payload => spec.payload::json,
          queue_name => spec.queue_name,
          run_at => coalesce(
            spec.run_at,
            -- An interval times a number uses floating point, which is exact for small numbers.
            pg_catalog.now()
              + (spec.delay / 3600000000)::float8 * interval '1 hour'
              + (spec.delay % 3600000000)::float8 * interval '1 microsecond'
          ),
          max_attempts => spec.max_attempts,
          priority => spec.priority,
          flags => spec.flags
        ) as jobs;
        if added_id is null then
          raise exception using
            errcode = 'P0002',
            message = 'a trigger on the jobs suppressed the job';
        end if;
        update :ext_schema.unique_keys as keys
        set job_id = added_id
        where keys.key = spec.unique_key;
      end if;
      select keys.job_id, keys.since into earlier
      from :ext_schema.unique_keys as keys
      where keys.key = spec.unique_key;
    end if;
    return query
    select
      spec.position,
      added_id is null,
      earlier.job_id,
      tasks.identifier,
      job_queues.queue_name,
      jobs.payload,
      jobs.priority,
      jobs.run_at,
      jobs.attempts,
      jobs.max_attempts,
      jobs.last_error,
      coalesce(jobs.created_at, earlier.since),
      jobs.updated_at,
      jobs.key,
      jobs.locked_at,
      jobs.locked_by,
      jobs.revision,
      jobs.flags
    from (select) as one
    left join :schema._private_jobs as jobs on jobs.id = earlier.job_id
    left join :schema._private_tasks as tasks on tasks.id = jobs.task_id
    left join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id;
  end loop;
end;
$gw$;

-- Add one job, for triggers and other languages. The parameters are those of add_job.
create or replace function :ext_schema.add_unique_job(
  identifier text,
  payload json,
  unique_key text,
  unique_for interval,
  queue_name text default null,
  run_at timestamptz default null,
  max_attempts integer default null,
  priority integer default null,
  flags text[] default null
)
returns table (job_id bigint, is_duplicate boolean)
language plpgsql
set search_path = pg_catalog, pg_temp
set intervalstyle = 'postgres'
as $gw$
begin
  return query
  select jobs.id, jobs.is_duplicate
  from :ext_schema.add_unique_jobs(
    pg_catalog.json_build_array(
      pg_catalog.json_build_object(
        'identifier', add_unique_job.identifier,
        -- As text, so that it is stored as it is written.
        'payload', add_unique_job.payload::text,
        'unique_key', add_unique_job.unique_key,
        'unique_for', add_unique_job.unique_for::text,
        'queue_name', add_unique_job.queue_name,
        'run_at', add_unique_job.run_at,
        'max_attempts', add_unique_job.max_attempts,
        'priority', add_unique_job.priority,
        'flags', add_unique_job.flags
      )
    )
  ) as jobs;
end;
$gw$;

insert into :ext_schema.migrations (id, name)
values (9, '0009_unique')
on conflict do nothing;
