-- Both schemas of a new installation, for reading. `python -m tools.dump_schema` writes
-- this file. `graphile-worker migrate --sql` prints the statements that install them.

CREATE SCHEMA graphile_worker;

CREATE SCHEMA graphile_worker_ext;

CREATE TYPE graphile_worker.job_spec AS (
	identifier text,
	payload json,
	queue_name text,
	run_at timestamp with time zone,
	max_attempts smallint,
	job_key text,
	priority smallint,
	flags text[]
);

CREATE TABLE graphile_worker._private_jobs (
    id bigint NOT NULL,
    job_queue_id integer,
    task_id integer NOT NULL,
    payload json DEFAULT '{}'::json NOT NULL,
    priority smallint DEFAULT 0 NOT NULL,
    run_at timestamp with time zone DEFAULT now() NOT NULL,
    attempts smallint DEFAULT 0 NOT NULL,
    max_attempts smallint DEFAULT 25 NOT NULL,
    last_error text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    key text,
    locked_at timestamp with time zone,
    locked_by text,
    revision integer DEFAULT 0 NOT NULL,
    flags jsonb,
    is_available boolean GENERATED ALWAYS AS (((locked_at IS NULL) AND (attempts < max_attempts))) STORED NOT NULL,
    CONSTRAINT jobs_key_check CHECK (((length(key) > 0) AND (length(key) <= 512))),
    CONSTRAINT jobs_max_attempts_check CHECK ((max_attempts >= 1))
);

CREATE FUNCTION graphile_worker.add_job(identifier text, payload json DEFAULT NULL::json, queue_name text DEFAULT NULL::text, run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, max_attempts integer DEFAULT NULL::integer, job_key text DEFAULT NULL::text, priority integer DEFAULT NULL::integer, flags text[] DEFAULT NULL::text[], job_key_mode text DEFAULT 'replace'::text) RETURNS graphile_worker._private_jobs
    LANGUAGE plpgsql
    AS $$
declare
  added "graphile_worker"._private_jobs;
begin
  if job_key is null or coalesce(job_key_mode, 'replace') in ('replace', 'preserve_run_at') then
    select jobs.* into added
    from "graphile_worker".add_jobs(
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
          ) as "graphile_worker".job_spec
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

  insert into "graphile_worker"._private_tasks (identifier)
  select add_job.identifier
  where not exists (
    select from "graphile_worker"._private_tasks as tasks where tasks.identifier = add_job.identifier
  )
  on conflict do nothing;

  insert into "graphile_worker"._private_job_queues (queue_name)
  select add_job.queue_name
  where add_job.queue_name is not null
    and not exists (
      select from "graphile_worker"._private_job_queues as job_queues
      where job_queues.queue_name = add_job.queue_name
    )
  on conflict do nothing;

  insert into "graphile_worker"._private_jobs as jobs
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
  from "graphile_worker"._private_tasks as tasks
  left join "graphile_worker"._private_job_queues as job_queues
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
$$;

CREATE FUNCTION graphile_worker.add_jobs(specs graphile_worker.job_spec[], job_key_preserve_run_at boolean DEFAULT false) RETURNS SETOF graphile_worker._private_jobs
    LANGUAGE plpgsql
    AS $$
begin
  insert into "graphile_worker"._private_tasks (identifier)
  select distinct spec.identifier
  from pg_catalog.unnest(specs) as spec
  where not exists (
    select from "graphile_worker"._private_tasks as tasks where tasks.identifier = spec.identifier
  )
  on conflict do nothing;

  insert into "graphile_worker"._private_job_queues (queue_name)
  select distinct spec.queue_name
  from pg_catalog.unnest(specs) as spec
  where spec.queue_name is not null
    and not exists (
      select from "graphile_worker"._private_job_queues as job_queues
      where job_queues.queue_name = spec.queue_name
    )
  on conflict do nothing;

  -- A job that runs, or will never run again, gives its key to its successor.
  update "graphile_worker"._private_jobs as jobs
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
  insert into "graphile_worker"._private_jobs as jobs
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
  join "graphile_worker"._private_tasks as tasks on tasks.identifier = spec.identifier
  left join "graphile_worker"._private_job_queues as job_queues on job_queues.queue_name = spec.queue_name
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
$$;

CREATE FUNCTION graphile_worker.complete_jobs(job_ids bigint[]) RETURNS SETOF graphile_worker._private_jobs
    LANGUAGE sql
    AS $$
  delete from "graphile_worker"._private_jobs as jobs
  where jobs.id = any (complete_jobs.job_ids)
    and (jobs.locked_at is null or jobs.locked_at < pg_catalog.now() - interval '4 hours')
  returning jobs.*;
$$;

CREATE FUNCTION graphile_worker.force_unlock_workers(worker_ids text[]) RETURNS void
    LANGUAGE sql
    AS $$
  update "graphile_worker"._private_jobs as jobs
  set locked_at = null,
      locked_by = null
  where jobs.locked_by = any (force_unlock_workers.worker_ids);

  update "graphile_worker"._private_job_queues as job_queues
  set locked_at = null,
      locked_by = null
  where job_queues.locked_by = any (force_unlock_workers.worker_ids);
$$;

CREATE FUNCTION graphile_worker.permanently_fail_jobs(job_ids bigint[], error_message text DEFAULT NULL::text) RETURNS SETOF graphile_worker._private_jobs
    LANGUAGE sql
    AS $$
  update "graphile_worker"._private_jobs as jobs
  set last_error = coalesce(permanently_fail_jobs.error_message, 'Manually marked as failed'),
      attempts = jobs.max_attempts,
      updated_at = pg_catalog.now()
  where jobs.id = any (permanently_fail_jobs.job_ids)
    and (jobs.locked_at is null or jobs.locked_at < pg_catalog.now() - interval '4 hours')
  returning jobs.*;
$$;

CREATE FUNCTION graphile_worker.remove_job(job_key text) RETURNS graphile_worker._private_jobs
    LANGUAGE plpgsql STRICT
    AS $$
declare
  removed "graphile_worker"._private_jobs;
begin
  delete from "graphile_worker"._private_jobs as jobs
  where jobs.key = remove_job.job_key
    and (jobs.locked_at is null or jobs.locked_at < pg_catalog.now() - interval '4 hours')
  returning jobs.* into removed;

  if found then
    perform pg_catalog.pg_notify(
      'jobs:insert',
      pg_catalog.json_build_object('r', pg_catalog.random(), 'count', -1)::text
    );
    return removed;
  end if;

  update "graphile_worker"._private_jobs as jobs
  set key = null,
      attempts = jobs.max_attempts,
      updated_at = pg_catalog.now()
  where jobs.key = remove_job.job_key
  returning jobs.* into removed;

  return removed;
end;
$$;

CREATE FUNCTION graphile_worker.reschedule_jobs(job_ids bigint[], run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, priority integer DEFAULT NULL::integer, attempts integer DEFAULT NULL::integer, max_attempts integer DEFAULT NULL::integer) RETURNS SETOF graphile_worker._private_jobs
    LANGUAGE sql
    AS $$
  update "graphile_worker"._private_jobs as jobs
  set run_at = coalesce(reschedule_jobs.run_at, jobs.run_at),
      priority = coalesce(reschedule_jobs.priority::smallint, jobs.priority),
      attempts = coalesce(reschedule_jobs.attempts::smallint, jobs.attempts),
      max_attempts = coalesce(reschedule_jobs.max_attempts::smallint, jobs.max_attempts),
      updated_at = pg_catalog.now()
  where jobs.id = any (reschedule_jobs.job_ids)
    and (jobs.locked_at is null or jobs.locked_at < pg_catalog.now() - interval '4 hours')
  returning jobs.*;
$$;

CREATE FUNCTION graphile_worker_ext.add_unique_job(identifier text, payload json, unique_key text, unique_for interval, queue_name text DEFAULT NULL::text, run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, max_attempts integer DEFAULT NULL::integer, priority integer DEFAULT NULL::integer, flags text[] DEFAULT NULL::text[]) RETURNS TABLE(job_id bigint, is_duplicate boolean)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "IntervalStyle" TO 'postgres'
    AS $$
begin
  return query
  select jobs.id, jobs.is_duplicate
  from "graphile_worker_ext".add_unique_jobs(
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
$$;

CREATE FUNCTION graphile_worker_ext.add_unique_jobs(specs json, decided_at timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS TABLE(spec_position bigint, is_duplicate boolean, id bigint, task_identifier text, queue_name text, payload json, priority smallint, run_at timestamp with time zone, attempts smallint, max_attempts smallint, last_error text, created_at timestamp with time zone, updated_at timestamp with time zone, key text, locked_at timestamp with time zone, locked_by text, revision integer, flags jsonb)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "IntervalStyle" TO 'postgres'
    AS $$
#variable_conflict use_column
declare
  spec record;
  earlier record;
  added_id bigint;
begin
  -- New names before the keys, in one order. add_job would insert them while it has some of the keys,
  -- so two sessions could wait for each other: one for a name, the other for a key. A duplicate adds
  -- no name.
  insert into "graphile_worker"._private_tasks (identifier)
  select distinct given.identifier
  from pg_catalog.json_to_recordset(specs) as given (identifier text, unique_key text)
  where given.identifier is not null
    and not exists (
      select
      from "graphile_worker"._private_tasks as tasks
      where tasks.identifier = given.identifier
    )
    and not exists (
      select
      from "graphile_worker_ext".unique_keys as keys
      where keys.key = given.unique_key
        and keys.until > coalesce(decided_at, pg_catalog.clock_timestamp())
    )
  order by given.identifier
  on conflict do nothing;
  insert into "graphile_worker"._private_job_queues (queue_name)
  select distinct given.queue_name
  from pg_catalog.json_to_recordset(specs) as given (queue_name text, unique_key text)
  where given.queue_name is not null
    and not exists (
      select
      from "graphile_worker"._private_job_queues as job_queues
      where job_queues.queue_name = given.queue_name
    )
    and not exists (
      select
      from "graphile_worker_ext".unique_keys as keys
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
    from "graphile_worker_ext".unique_keys as keys
    where keys.key = spec.unique_key
      and keys.until > coalesce(decided_at, pg_catalog.clock_timestamp());
    if not found then
      -- Waits for a transaction that adds a job with the same key.
      insert into "graphile_worker_ext".unique_keys as keys (key, since, until)
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
        from "graphile_worker".add_job(
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
        update "graphile_worker_ext".unique_keys as keys
        set job_id = added_id
        where keys.key = spec.unique_key;
      end if;
      select keys.job_id, keys.since into earlier
      from "graphile_worker_ext".unique_keys as keys
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
    left join "graphile_worker"._private_jobs as jobs on jobs.id = earlier.job_id
    left join "graphile_worker"._private_tasks as tasks on tasks.id = jobs.task_id
    left join "graphile_worker"._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id;
  end loop;
end;
$$;

CREATE FUNCTION graphile_worker_ext.rotate_history(seen_slot smallint, seen_starts timestamp with time zone[], next_slot smallint, next_starts timestamp with time zone[], emptied_slots integer[], emptied_until timestamp with time zone[]) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '250ms'
    AS $_$
declare
  schema_name text := (
    select class.relnamespace::regnamespace::text
    from pg_catalog.pg_type as type
    join pg_catalog.pg_class as class on class.oid = type.typrelid
    where type.oid = pg_catalog.pg_typeof(cast(null as "graphile_worker_ext".outcomes))::oid
  );
  slot_tables text[] := '{}';
begin
  perform
  from "graphile_worker_ext".history as history
  where history.name = 'outcomes'
    and history.slot = seen_slot
    and history.started_at = seen_starts
  for update skip locked;
  if not found then
    return false;
  end if;
  for n in 1 .. pg_catalog.cardinality(emptied_slots) loop
    execute pg_catalog.format(
      'lock table %1$s.outcomes_%2$s, %1$s.attempts_%2$s in access exclusive mode',
      schema_name,
      emptied_slots[n]
    );
    -- A statement that began before the slot ended may have written to it since. Roles may read the
    -- whole tables, not their partitions.
    if exists (
      select
      from "graphile_worker_ext".outcomes as outcomes
      where outcomes.slot = emptied_slots[n]
        and outcomes.finished_at > emptied_until[n]
    ) or exists (
      select
      from "graphile_worker_ext".attempts as attempts
      where attempts.slot = emptied_slots[n]
        and attempts.started_at + attempts.duration * interval '1 second' > emptied_until[n]
    ) then
      return false;
    end if;
    slot_tables := slot_tables || pg_catalog.format(
      '%1$s.outcomes_%2$s, %1$s.attempts_%2$s', schema_name, emptied_slots[n]
    );
  end loop;
  if slot_tables <> '{}' then
    execute pg_catalog.concat('truncate table ', pg_catalog.array_to_string(slot_tables, ', '));
  end if;
  update "graphile_worker_ext".history as history
  set slot = next_slot,
      started_at = next_starts
  where history.name = 'outcomes';
  return true;
end;
$_$;

CREATE TABLE graphile_worker._private_job_queues (
    id integer NOT NULL,
    queue_name text NOT NULL,
    locked_at timestamp with time zone,
    locked_by text,
    is_available boolean GENERATED ALWAYS AS ((locked_at IS NULL)) STORED NOT NULL,
    CONSTRAINT job_queues_queue_name_check CHECK ((length(queue_name) <= 128))
);

CREATE TABLE graphile_worker._private_known_crontabs (
    identifier text NOT NULL,
    known_since timestamp with time zone NOT NULL,
    last_execution timestamp with time zone
);

CREATE TABLE graphile_worker._private_tasks (
    id integer NOT NULL,
    identifier text NOT NULL,
    CONSTRAINT tasks_identifier_check CHECK ((length(identifier) <= 128))
);

ALTER TABLE graphile_worker._private_job_queues ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME graphile_worker.job_queues_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE VIEW graphile_worker.jobs AS
 SELECT jobs.id,
    job_queues.queue_name,
    tasks.identifier AS task_identifier,
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
   FROM ((graphile_worker._private_jobs jobs
     JOIN graphile_worker._private_tasks tasks ON ((tasks.id = jobs.task_id)))
     LEFT JOIN graphile_worker._private_job_queues job_queues ON ((job_queues.id = jobs.job_queue_id)));

ALTER TABLE graphile_worker._private_jobs ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME graphile_worker.jobs_id_seq1
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE graphile_worker.migrations (
    id integer NOT NULL,
    ts timestamp with time zone DEFAULT now() NOT NULL,
    breaking boolean DEFAULT false NOT NULL
);

ALTER TABLE graphile_worker._private_tasks ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME graphile_worker.tasks_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE graphile_worker_ext.attempts (
    job_id bigint NOT NULL,
    started_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone,
    duration real NOT NULL,
    slot smallint NOT NULL,
    attempt smallint NOT NULL,
    pool_id text NOT NULL,
    error text,
    error_class text
)
PARTITION BY LIST (slot);

CREATE TABLE graphile_worker_ext.attempts_0 (
    job_id bigint CONSTRAINT attempts_job_id_not_null NOT NULL,
    started_at timestamp with time zone CONSTRAINT attempts_started_at_not_null NOT NULL,
    expires_at timestamp with time zone,
    duration real CONSTRAINT attempts_duration_not_null NOT NULL,
    slot smallint CONSTRAINT attempts_slot_not_null NOT NULL,
    attempt smallint CONSTRAINT attempts_attempt_not_null NOT NULL,
    pool_id text CONSTRAINT attempts_pool_id_not_null NOT NULL,
    error text,
    error_class text
);

CREATE TABLE graphile_worker_ext.attempts_1 (
    job_id bigint CONSTRAINT attempts_job_id_not_null NOT NULL,
    started_at timestamp with time zone CONSTRAINT attempts_started_at_not_null NOT NULL,
    expires_at timestamp with time zone,
    duration real CONSTRAINT attempts_duration_not_null NOT NULL,
    slot smallint CONSTRAINT attempts_slot_not_null NOT NULL,
    attempt smallint CONSTRAINT attempts_attempt_not_null NOT NULL,
    pool_id text CONSTRAINT attempts_pool_id_not_null NOT NULL,
    error text,
    error_class text
);

CREATE TABLE graphile_worker_ext.attempts_2 (
    job_id bigint CONSTRAINT attempts_job_id_not_null NOT NULL,
    started_at timestamp with time zone CONSTRAINT attempts_started_at_not_null NOT NULL,
    expires_at timestamp with time zone,
    duration real CONSTRAINT attempts_duration_not_null NOT NULL,
    slot smallint CONSTRAINT attempts_slot_not_null NOT NULL,
    attempt smallint CONSTRAINT attempts_attempt_not_null NOT NULL,
    pool_id text CONSTRAINT attempts_pool_id_not_null NOT NULL,
    error text,
    error_class text
);

CREATE TABLE graphile_worker_ext.attempts_3 (
    job_id bigint CONSTRAINT attempts_job_id_not_null NOT NULL,
    started_at timestamp with time zone CONSTRAINT attempts_started_at_not_null NOT NULL,
    expires_at timestamp with time zone,
    duration real CONSTRAINT attempts_duration_not_null NOT NULL,
    slot smallint CONSTRAINT attempts_slot_not_null NOT NULL,
    attempt smallint CONSTRAINT attempts_attempt_not_null NOT NULL,
    pool_id text CONSTRAINT attempts_pool_id_not_null NOT NULL,
    error text,
    error_class text
);

CREATE TABLE graphile_worker_ext.attempts_4 (
    job_id bigint CONSTRAINT attempts_job_id_not_null NOT NULL,
    started_at timestamp with time zone CONSTRAINT attempts_started_at_not_null NOT NULL,
    expires_at timestamp with time zone,
    duration real CONSTRAINT attempts_duration_not_null NOT NULL,
    slot smallint CONSTRAINT attempts_slot_not_null NOT NULL,
    attempt smallint CONSTRAINT attempts_attempt_not_null NOT NULL,
    pool_id text CONSTRAINT attempts_pool_id_not_null NOT NULL,
    error text,
    error_class text
);

CREATE TABLE graphile_worker_ext.attempts_5 (
    job_id bigint CONSTRAINT attempts_job_id_not_null NOT NULL,
    started_at timestamp with time zone CONSTRAINT attempts_started_at_not_null NOT NULL,
    expires_at timestamp with time zone,
    duration real CONSTRAINT attempts_duration_not_null NOT NULL,
    slot smallint CONSTRAINT attempts_slot_not_null NOT NULL,
    attempt smallint CONSTRAINT attempts_attempt_not_null NOT NULL,
    pool_id text CONSTRAINT attempts_pool_id_not_null NOT NULL,
    error text,
    error_class text
);

CREATE TABLE graphile_worker_ext.attempts_6 (
    job_id bigint CONSTRAINT attempts_job_id_not_null NOT NULL,
    started_at timestamp with time zone CONSTRAINT attempts_started_at_not_null NOT NULL,
    expires_at timestamp with time zone,
    duration real CONSTRAINT attempts_duration_not_null NOT NULL,
    slot smallint CONSTRAINT attempts_slot_not_null NOT NULL,
    attempt smallint CONSTRAINT attempts_attempt_not_null NOT NULL,
    pool_id text CONSTRAINT attempts_pool_id_not_null NOT NULL,
    error text,
    error_class text
);

CREATE TABLE graphile_worker_ext.attempts_7 (
    job_id bigint CONSTRAINT attempts_job_id_not_null NOT NULL,
    started_at timestamp with time zone CONSTRAINT attempts_started_at_not_null NOT NULL,
    expires_at timestamp with time zone,
    duration real CONSTRAINT attempts_duration_not_null NOT NULL,
    slot smallint CONSTRAINT attempts_slot_not_null NOT NULL,
    attempt smallint CONSTRAINT attempts_attempt_not_null NOT NULL,
    pool_id text CONSTRAINT attempts_pool_id_not_null NOT NULL,
    error text,
    error_class text
);

CREATE TABLE graphile_worker_ext.attempts_8 (
    job_id bigint CONSTRAINT attempts_job_id_not_null NOT NULL,
    started_at timestamp with time zone CONSTRAINT attempts_started_at_not_null NOT NULL,
    expires_at timestamp with time zone,
    duration real CONSTRAINT attempts_duration_not_null NOT NULL,
    slot smallint CONSTRAINT attempts_slot_not_null NOT NULL,
    attempt smallint CONSTRAINT attempts_attempt_not_null NOT NULL,
    pool_id text CONSTRAINT attempts_pool_id_not_null NOT NULL,
    error text,
    error_class text
);

CREATE TABLE graphile_worker_ext.audit (
    id bigint NOT NULL,
    at timestamp with time zone DEFAULT now() NOT NULL,
    actor text,
    role text DEFAULT SESSION_USER NOT NULL,
    action text NOT NULL,
    filter text,
    job_ids bigint[] DEFAULT '{}'::bigint[] NOT NULL,
    count bigint DEFAULT 0 NOT NULL,
    note text
);

ALTER TABLE graphile_worker_ext.audit ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME graphile_worker_ext.audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE graphile_worker_ext.history (
    name text NOT NULL,
    slot smallint DEFAULT 0 NOT NULL,
    started_at timestamp with time zone[] NOT NULL,
    keep interval,
    max_rows bigint
);

CREATE TABLE graphile_worker_ext.limits (
    name text NOT NULL,
    kind text NOT NULL,
    amount integer NOT NULL,
    period interval,
    burst integer,
    app_amount integer NOT NULL,
    app_period interval,
    app_burst integer,
    set_by text,
    set_at timestamp with time zone,
    wanted_by text,
    wanted_at timestamp with time zone,
    CONSTRAINT limits_kind_check CHECK ((kind = ANY (ARRAY['concurrency'::text, 'rate'::text]))),
    CONSTRAINT limits_values_check CHECK (((amount > 0) AND (app_amount > 0) AND ((kind <> 'rate'::text) OR (((period > '00:00:00'::interval) AND (burst > 0) AND (app_period > '00:00:00'::interval) AND (app_burst > 0)) IS TRUE))))
);

CREATE TABLE graphile_worker_ext.migrations (
    id integer NOT NULL,
    name text NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL,
    applied_by text DEFAULT CURRENT_USER NOT NULL
);

CREATE TABLE graphile_worker_ext.outcomes (
    job_id bigint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    run_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone NOT NULL,
    finished_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone,
    slot smallint NOT NULL,
    succeeded boolean NOT NULL,
    has_result boolean DEFAULT false NOT NULL,
    attempts smallint NOT NULL,
    task_identifier text NOT NULL,
    pool_id text NOT NULL,
    result json,
    payload json,
    priority smallint,
    error text,
    error_class text
)
PARTITION BY LIST (slot);

CREATE TABLE graphile_worker_ext.outcomes_0 (
    job_id bigint CONSTRAINT outcomes_job_id_not_null NOT NULL,
    created_at timestamp with time zone CONSTRAINT outcomes_created_at_not_null NOT NULL,
    run_at timestamp with time zone CONSTRAINT outcomes_run_at_not_null NOT NULL,
    started_at timestamp with time zone CONSTRAINT outcomes_started_at_not_null NOT NULL,
    finished_at timestamp with time zone CONSTRAINT outcomes_finished_at_not_null NOT NULL,
    expires_at timestamp with time zone,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    succeeded boolean CONSTRAINT outcomes_succeeded_not_null NOT NULL,
    has_result boolean DEFAULT false CONSTRAINT outcomes_has_result_not_null NOT NULL,
    attempts smallint CONSTRAINT outcomes_attempts_not_null NOT NULL,
    task_identifier text CONSTRAINT outcomes_task_identifier_not_null NOT NULL,
    pool_id text CONSTRAINT outcomes_pool_id_not_null NOT NULL,
    result json,
    payload json,
    priority smallint,
    error text,
    error_class text
);

CREATE TABLE graphile_worker_ext.outcomes_1 (
    job_id bigint CONSTRAINT outcomes_job_id_not_null NOT NULL,
    created_at timestamp with time zone CONSTRAINT outcomes_created_at_not_null NOT NULL,
    run_at timestamp with time zone CONSTRAINT outcomes_run_at_not_null NOT NULL,
    started_at timestamp with time zone CONSTRAINT outcomes_started_at_not_null NOT NULL,
    finished_at timestamp with time zone CONSTRAINT outcomes_finished_at_not_null NOT NULL,
    expires_at timestamp with time zone,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    succeeded boolean CONSTRAINT outcomes_succeeded_not_null NOT NULL,
    has_result boolean DEFAULT false CONSTRAINT outcomes_has_result_not_null NOT NULL,
    attempts smallint CONSTRAINT outcomes_attempts_not_null NOT NULL,
    task_identifier text CONSTRAINT outcomes_task_identifier_not_null NOT NULL,
    pool_id text CONSTRAINT outcomes_pool_id_not_null NOT NULL,
    result json,
    payload json,
    priority smallint,
    error text,
    error_class text
);

CREATE TABLE graphile_worker_ext.outcomes_2 (
    job_id bigint CONSTRAINT outcomes_job_id_not_null NOT NULL,
    created_at timestamp with time zone CONSTRAINT outcomes_created_at_not_null NOT NULL,
    run_at timestamp with time zone CONSTRAINT outcomes_run_at_not_null NOT NULL,
    started_at timestamp with time zone CONSTRAINT outcomes_started_at_not_null NOT NULL,
    finished_at timestamp with time zone CONSTRAINT outcomes_finished_at_not_null NOT NULL,
    expires_at timestamp with time zone,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    succeeded boolean CONSTRAINT outcomes_succeeded_not_null NOT NULL,
    has_result boolean DEFAULT false CONSTRAINT outcomes_has_result_not_null NOT NULL,
    attempts smallint CONSTRAINT outcomes_attempts_not_null NOT NULL,
    task_identifier text CONSTRAINT outcomes_task_identifier_not_null NOT NULL,
    pool_id text CONSTRAINT outcomes_pool_id_not_null NOT NULL,
    result json,
    payload json,
    priority smallint,
    error text,
    error_class text
);

CREATE TABLE graphile_worker_ext.outcomes_3 (
    job_id bigint CONSTRAINT outcomes_job_id_not_null NOT NULL,
    created_at timestamp with time zone CONSTRAINT outcomes_created_at_not_null NOT NULL,
    run_at timestamp with time zone CONSTRAINT outcomes_run_at_not_null NOT NULL,
    started_at timestamp with time zone CONSTRAINT outcomes_started_at_not_null NOT NULL,
    finished_at timestamp with time zone CONSTRAINT outcomes_finished_at_not_null NOT NULL,
    expires_at timestamp with time zone,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    succeeded boolean CONSTRAINT outcomes_succeeded_not_null NOT NULL,
    has_result boolean DEFAULT false CONSTRAINT outcomes_has_result_not_null NOT NULL,
    attempts smallint CONSTRAINT outcomes_attempts_not_null NOT NULL,
    task_identifier text CONSTRAINT outcomes_task_identifier_not_null NOT NULL,
    pool_id text CONSTRAINT outcomes_pool_id_not_null NOT NULL,
    result json,
    payload json,
    priority smallint,
    error text,
    error_class text
);

CREATE TABLE graphile_worker_ext.outcomes_4 (
    job_id bigint CONSTRAINT outcomes_job_id_not_null NOT NULL,
    created_at timestamp with time zone CONSTRAINT outcomes_created_at_not_null NOT NULL,
    run_at timestamp with time zone CONSTRAINT outcomes_run_at_not_null NOT NULL,
    started_at timestamp with time zone CONSTRAINT outcomes_started_at_not_null NOT NULL,
    finished_at timestamp with time zone CONSTRAINT outcomes_finished_at_not_null NOT NULL,
    expires_at timestamp with time zone,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    succeeded boolean CONSTRAINT outcomes_succeeded_not_null NOT NULL,
    has_result boolean DEFAULT false CONSTRAINT outcomes_has_result_not_null NOT NULL,
    attempts smallint CONSTRAINT outcomes_attempts_not_null NOT NULL,
    task_identifier text CONSTRAINT outcomes_task_identifier_not_null NOT NULL,
    pool_id text CONSTRAINT outcomes_pool_id_not_null NOT NULL,
    result json,
    payload json,
    priority smallint,
    error text,
    error_class text
);

CREATE TABLE graphile_worker_ext.outcomes_5 (
    job_id bigint CONSTRAINT outcomes_job_id_not_null NOT NULL,
    created_at timestamp with time zone CONSTRAINT outcomes_created_at_not_null NOT NULL,
    run_at timestamp with time zone CONSTRAINT outcomes_run_at_not_null NOT NULL,
    started_at timestamp with time zone CONSTRAINT outcomes_started_at_not_null NOT NULL,
    finished_at timestamp with time zone CONSTRAINT outcomes_finished_at_not_null NOT NULL,
    expires_at timestamp with time zone,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    succeeded boolean CONSTRAINT outcomes_succeeded_not_null NOT NULL,
    has_result boolean DEFAULT false CONSTRAINT outcomes_has_result_not_null NOT NULL,
    attempts smallint CONSTRAINT outcomes_attempts_not_null NOT NULL,
    task_identifier text CONSTRAINT outcomes_task_identifier_not_null NOT NULL,
    pool_id text CONSTRAINT outcomes_pool_id_not_null NOT NULL,
    result json,
    payload json,
    priority smallint,
    error text,
    error_class text
);

CREATE TABLE graphile_worker_ext.outcomes_6 (
    job_id bigint CONSTRAINT outcomes_job_id_not_null NOT NULL,
    created_at timestamp with time zone CONSTRAINT outcomes_created_at_not_null NOT NULL,
    run_at timestamp with time zone CONSTRAINT outcomes_run_at_not_null NOT NULL,
    started_at timestamp with time zone CONSTRAINT outcomes_started_at_not_null NOT NULL,
    finished_at timestamp with time zone CONSTRAINT outcomes_finished_at_not_null NOT NULL,
    expires_at timestamp with time zone,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    succeeded boolean CONSTRAINT outcomes_succeeded_not_null NOT NULL,
    has_result boolean DEFAULT false CONSTRAINT outcomes_has_result_not_null NOT NULL,
    attempts smallint CONSTRAINT outcomes_attempts_not_null NOT NULL,
    task_identifier text CONSTRAINT outcomes_task_identifier_not_null NOT NULL,
    pool_id text CONSTRAINT outcomes_pool_id_not_null NOT NULL,
    result json,
    payload json,
    priority smallint,
    error text,
    error_class text
);

CREATE TABLE graphile_worker_ext.outcomes_7 (
    job_id bigint CONSTRAINT outcomes_job_id_not_null NOT NULL,
    created_at timestamp with time zone CONSTRAINT outcomes_created_at_not_null NOT NULL,
    run_at timestamp with time zone CONSTRAINT outcomes_run_at_not_null NOT NULL,
    started_at timestamp with time zone CONSTRAINT outcomes_started_at_not_null NOT NULL,
    finished_at timestamp with time zone CONSTRAINT outcomes_finished_at_not_null NOT NULL,
    expires_at timestamp with time zone,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    succeeded boolean CONSTRAINT outcomes_succeeded_not_null NOT NULL,
    has_result boolean DEFAULT false CONSTRAINT outcomes_has_result_not_null NOT NULL,
    attempts smallint CONSTRAINT outcomes_attempts_not_null NOT NULL,
    task_identifier text CONSTRAINT outcomes_task_identifier_not_null NOT NULL,
    pool_id text CONSTRAINT outcomes_pool_id_not_null NOT NULL,
    result json,
    payload json,
    priority smallint,
    error text,
    error_class text
);

CREATE TABLE graphile_worker_ext.outcomes_8 (
    job_id bigint CONSTRAINT outcomes_job_id_not_null NOT NULL,
    created_at timestamp with time zone CONSTRAINT outcomes_created_at_not_null NOT NULL,
    run_at timestamp with time zone CONSTRAINT outcomes_run_at_not_null NOT NULL,
    started_at timestamp with time zone CONSTRAINT outcomes_started_at_not_null NOT NULL,
    finished_at timestamp with time zone CONSTRAINT outcomes_finished_at_not_null NOT NULL,
    expires_at timestamp with time zone,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    succeeded boolean CONSTRAINT outcomes_succeeded_not_null NOT NULL,
    has_result boolean DEFAULT false CONSTRAINT outcomes_has_result_not_null NOT NULL,
    attempts smallint CONSTRAINT outcomes_attempts_not_null NOT NULL,
    task_identifier text CONSTRAINT outcomes_task_identifier_not_null NOT NULL,
    pool_id text CONSTRAINT outcomes_pool_id_not_null NOT NULL,
    result json,
    payload json,
    priority smallint,
    error text,
    error_class text
);

CREATE TABLE graphile_worker_ext.pauses (
    kind text NOT NULL,
    name text NOT NULL,
    paused_by text NOT NULL,
    reason text,
    since timestamp with time zone DEFAULT now() NOT NULL,
    until timestamp with time zone,
    CONSTRAINT pauses_kind_check CHECK ((kind = ANY (ARRAY['task'::text, 'queue'::text])))
);

CREATE TABLE graphile_worker_ext.pools (
    id text NOT NULL,
    started_at timestamp with time zone DEFAULT now() NOT NULL,
    seen_at timestamp with time zone DEFAULT now() NOT NULL,
    lease interval NOT NULL,
    started_jobs bigint[] DEFAULT '{}'::bigint[] NOT NULL,
    swept_at timestamp with time zone,
    details json NOT NULL
)
WITH (fillfactor='50');

CREATE UNLOGGED TABLE graphile_worker_ext.progress (
    job_id bigint NOT NULL,
    pool_id text NOT NULL,
    fraction double precision,
    message text,
    updated_at timestamp with time zone NOT NULL
)
WITH (fillfactor='50');

CREATE TABLE graphile_worker_ext.rates (
    limit_name text NOT NULL,
    due_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL
)
WITH (fillfactor='20');

CREATE TABLE graphile_worker_ext.recoveries (
    job_id bigint NOT NULL,
    count integer NOT NULL,
    recovered_at timestamp with time zone DEFAULT now() NOT NULL,
    started_by text,
    started_attempt integer
);

CREATE UNLOGGED TABLE graphile_worker_ext.samples (
    name text NOT NULL,
    taken_at timestamp with time zone NOT NULL,
    next_at timestamp with time zone NOT NULL,
    duration double precision NOT NULL,
    body json NOT NULL
);

CREATE TABLE graphile_worker_ext.slots (
    limit_name text NOT NULL,
    slot integer NOT NULL,
    pool_id text,
    rental bigint DEFAULT 0 NOT NULL,
    rented_at timestamp with time zone
)
WITH (fillfactor='20');

CREATE TABLE graphile_worker_ext.turns (
    name text NOT NULL
);

CREATE TABLE graphile_worker_ext.unique_keys (
    key text NOT NULL,
    since timestamp with time zone NOT NULL,
    until timestamp with time zone NOT NULL,
    job_id bigint,
    CONSTRAINT unique_keys_key_check CHECK (((length(key) >= 1) AND (length(key) <= 512)))
)
WITH (fillfactor='70');

ALTER TABLE ONLY graphile_worker_ext.attempts ATTACH PARTITION graphile_worker_ext.attempts_0 FOR VALUES IN ('0');

ALTER TABLE ONLY graphile_worker_ext.attempts ATTACH PARTITION graphile_worker_ext.attempts_1 FOR VALUES IN ('1');

ALTER TABLE ONLY graphile_worker_ext.attempts ATTACH PARTITION graphile_worker_ext.attempts_2 FOR VALUES IN ('2');

ALTER TABLE ONLY graphile_worker_ext.attempts ATTACH PARTITION graphile_worker_ext.attempts_3 FOR VALUES IN ('3');

ALTER TABLE ONLY graphile_worker_ext.attempts ATTACH PARTITION graphile_worker_ext.attempts_4 FOR VALUES IN ('4');

ALTER TABLE ONLY graphile_worker_ext.attempts ATTACH PARTITION graphile_worker_ext.attempts_5 FOR VALUES IN ('5');

ALTER TABLE ONLY graphile_worker_ext.attempts ATTACH PARTITION graphile_worker_ext.attempts_6 FOR VALUES IN ('6');

ALTER TABLE ONLY graphile_worker_ext.attempts ATTACH PARTITION graphile_worker_ext.attempts_7 FOR VALUES IN ('7');

ALTER TABLE ONLY graphile_worker_ext.attempts ATTACH PARTITION graphile_worker_ext.attempts_8 FOR VALUES IN ('8');

ALTER TABLE ONLY graphile_worker_ext.outcomes ATTACH PARTITION graphile_worker_ext.outcomes_0 FOR VALUES IN ('0');

ALTER TABLE ONLY graphile_worker_ext.outcomes ATTACH PARTITION graphile_worker_ext.outcomes_1 FOR VALUES IN ('1');

ALTER TABLE ONLY graphile_worker_ext.outcomes ATTACH PARTITION graphile_worker_ext.outcomes_2 FOR VALUES IN ('2');

ALTER TABLE ONLY graphile_worker_ext.outcomes ATTACH PARTITION graphile_worker_ext.outcomes_3 FOR VALUES IN ('3');

ALTER TABLE ONLY graphile_worker_ext.outcomes ATTACH PARTITION graphile_worker_ext.outcomes_4 FOR VALUES IN ('4');

ALTER TABLE ONLY graphile_worker_ext.outcomes ATTACH PARTITION graphile_worker_ext.outcomes_5 FOR VALUES IN ('5');

ALTER TABLE ONLY graphile_worker_ext.outcomes ATTACH PARTITION graphile_worker_ext.outcomes_6 FOR VALUES IN ('6');

ALTER TABLE ONLY graphile_worker_ext.outcomes ATTACH PARTITION graphile_worker_ext.outcomes_7 FOR VALUES IN ('7');

ALTER TABLE ONLY graphile_worker_ext.outcomes ATTACH PARTITION graphile_worker_ext.outcomes_8 FOR VALUES IN ('8');

ALTER TABLE ONLY graphile_worker._private_job_queues
    ADD CONSTRAINT job_queues_pkey1 PRIMARY KEY (id);

ALTER TABLE ONLY graphile_worker._private_job_queues
    ADD CONSTRAINT job_queues_queue_name_key UNIQUE (queue_name);

ALTER TABLE ONLY graphile_worker._private_jobs
    ADD CONSTRAINT jobs_key_key1 UNIQUE (key);

ALTER TABLE ONLY graphile_worker._private_jobs
    ADD CONSTRAINT jobs_pkey1 PRIMARY KEY (id);

ALTER TABLE ONLY graphile_worker._private_known_crontabs
    ADD CONSTRAINT known_crontabs_pkey PRIMARY KEY (identifier);

ALTER TABLE ONLY graphile_worker.migrations
    ADD CONSTRAINT migrations_pkey PRIMARY KEY (id);

ALTER TABLE ONLY graphile_worker._private_tasks
    ADD CONSTRAINT tasks_identifier_key UNIQUE (identifier);

ALTER TABLE ONLY graphile_worker._private_tasks
    ADD CONSTRAINT tasks_pkey PRIMARY KEY (id);

ALTER TABLE ONLY graphile_worker_ext.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (id);

ALTER TABLE ONLY graphile_worker_ext.history
    ADD CONSTRAINT history_pkey PRIMARY KEY (name);

ALTER TABLE ONLY graphile_worker_ext.limits
    ADD CONSTRAINT limits_pkey PRIMARY KEY (name);

ALTER TABLE ONLY graphile_worker_ext.migrations
    ADD CONSTRAINT migrations_pkey PRIMARY KEY (id);

ALTER TABLE ONLY graphile_worker_ext.pauses
    ADD CONSTRAINT pauses_pkey PRIMARY KEY (kind, name);

ALTER TABLE ONLY graphile_worker_ext.pools
    ADD CONSTRAINT pools_pkey PRIMARY KEY (id);

ALTER TABLE ONLY graphile_worker_ext.progress
    ADD CONSTRAINT progress_pkey PRIMARY KEY (job_id);

ALTER TABLE ONLY graphile_worker_ext.rates
    ADD CONSTRAINT rates_pkey PRIMARY KEY (limit_name);

ALTER TABLE ONLY graphile_worker_ext.recoveries
    ADD CONSTRAINT recoveries_pkey PRIMARY KEY (job_id);

ALTER TABLE ONLY graphile_worker_ext.samples
    ADD CONSTRAINT samples_pkey PRIMARY KEY (name);

ALTER TABLE ONLY graphile_worker_ext.slots
    ADD CONSTRAINT slots_pkey PRIMARY KEY (limit_name, slot);

ALTER TABLE ONLY graphile_worker_ext.turns
    ADD CONSTRAINT turns_pkey PRIMARY KEY (name);

ALTER TABLE ONLY graphile_worker_ext.unique_keys
    ADD CONSTRAINT unique_keys_pkey PRIMARY KEY (key);

CREATE INDEX gwpy_free_jobs ON graphile_worker._private_jobs USING btree (task_id, priority, run_at, id) WHERE ((is_available = true) AND (job_queue_id IS NULL));

CREATE INDEX gwpy_jobs_of_queues ON graphile_worker._private_jobs USING btree (job_queue_id, priority, run_at, id) INCLUDE (task_id) WHERE ((is_available = true) AND (job_queue_id IS NOT NULL));

CREATE INDEX gwpy_locked_jobs ON graphile_worker._private_jobs USING brin (locked_at) WITH (pages_per_range='32') WHERE (locked_at IS NOT NULL);

CREATE INDEX gwpy_queued_jobs ON graphile_worker._private_jobs USING btree (task_id, priority, run_at, id) INCLUDE (job_queue_id) WHERE ((is_available = true) AND (job_queue_id IS NOT NULL));

CREATE INDEX jobs_main_index ON graphile_worker._private_jobs USING btree (priority, run_at) INCLUDE (id, task_id, job_queue_id) WHERE (is_available = true);

CREATE INDEX jobs_no_queue_index ON graphile_worker._private_jobs USING btree (priority, run_at) INCLUDE (id, task_id) WHERE ((is_available = true) AND (job_queue_id IS NULL));

CREATE INDEX attempts_job_id ON ONLY graphile_worker_ext.attempts USING btree (job_id);

CREATE INDEX attempts_0_job_id_idx ON graphile_worker_ext.attempts_0 USING btree (job_id);

CREATE INDEX attempts_1_job_id_idx ON graphile_worker_ext.attempts_1 USING btree (job_id);

CREATE INDEX attempts_2_job_id_idx ON graphile_worker_ext.attempts_2 USING btree (job_id);

CREATE INDEX attempts_3_job_id_idx ON graphile_worker_ext.attempts_3 USING btree (job_id);

CREATE INDEX attempts_4_job_id_idx ON graphile_worker_ext.attempts_4 USING btree (job_id);

CREATE INDEX attempts_5_job_id_idx ON graphile_worker_ext.attempts_5 USING btree (job_id);

CREATE INDEX attempts_6_job_id_idx ON graphile_worker_ext.attempts_6 USING btree (job_id);

CREATE INDEX attempts_7_job_id_idx ON graphile_worker_ext.attempts_7 USING btree (job_id);

CREATE INDEX attempts_8_job_id_idx ON graphile_worker_ext.attempts_8 USING btree (job_id);

CREATE INDEX outcomes_failed ON ONLY graphile_worker_ext.outcomes USING btree (finished_at) WHERE (NOT succeeded);

CREATE INDEX outcomes_0_finished_at_idx ON graphile_worker_ext.outcomes_0 USING btree (finished_at) WHERE (NOT succeeded);

CREATE INDEX outcomes_finished_at ON ONLY graphile_worker_ext.outcomes USING brin (finished_at) WITH (pages_per_range='32', autosummarize='on');

CREATE INDEX outcomes_0_finished_at_idx1 ON graphile_worker_ext.outcomes_0 USING brin (finished_at) WITH (pages_per_range='32', autosummarize='on');

CREATE INDEX outcomes_job_id ON ONLY graphile_worker_ext.outcomes USING btree (job_id);

CREATE INDEX outcomes_0_job_id_idx ON graphile_worker_ext.outcomes_0 USING btree (job_id);

CREATE INDEX outcomes_task ON ONLY graphile_worker_ext.outcomes USING btree (task_identifier, succeeded, finished_at);

CREATE INDEX outcomes_0_task_identifier_succeeded_finished_at_idx ON graphile_worker_ext.outcomes_0 USING btree (task_identifier, succeeded, finished_at);

CREATE INDEX outcomes_1_finished_at_idx ON graphile_worker_ext.outcomes_1 USING btree (finished_at) WHERE (NOT succeeded);

CREATE INDEX outcomes_1_finished_at_idx1 ON graphile_worker_ext.outcomes_1 USING brin (finished_at) WITH (pages_per_range='32', autosummarize='on');

CREATE INDEX outcomes_1_job_id_idx ON graphile_worker_ext.outcomes_1 USING btree (job_id);

CREATE INDEX outcomes_1_task_identifier_succeeded_finished_at_idx ON graphile_worker_ext.outcomes_1 USING btree (task_identifier, succeeded, finished_at);

CREATE INDEX outcomes_2_finished_at_idx ON graphile_worker_ext.outcomes_2 USING btree (finished_at) WHERE (NOT succeeded);

CREATE INDEX outcomes_2_finished_at_idx1 ON graphile_worker_ext.outcomes_2 USING brin (finished_at) WITH (pages_per_range='32', autosummarize='on');

CREATE INDEX outcomes_2_job_id_idx ON graphile_worker_ext.outcomes_2 USING btree (job_id);

CREATE INDEX outcomes_2_task_identifier_succeeded_finished_at_idx ON graphile_worker_ext.outcomes_2 USING btree (task_identifier, succeeded, finished_at);

CREATE INDEX outcomes_3_finished_at_idx ON graphile_worker_ext.outcomes_3 USING btree (finished_at) WHERE (NOT succeeded);

CREATE INDEX outcomes_3_finished_at_idx1 ON graphile_worker_ext.outcomes_3 USING brin (finished_at) WITH (pages_per_range='32', autosummarize='on');

CREATE INDEX outcomes_3_job_id_idx ON graphile_worker_ext.outcomes_3 USING btree (job_id);

CREATE INDEX outcomes_3_task_identifier_succeeded_finished_at_idx ON graphile_worker_ext.outcomes_3 USING btree (task_identifier, succeeded, finished_at);

CREATE INDEX outcomes_4_finished_at_idx ON graphile_worker_ext.outcomes_4 USING btree (finished_at) WHERE (NOT succeeded);

CREATE INDEX outcomes_4_finished_at_idx1 ON graphile_worker_ext.outcomes_4 USING brin (finished_at) WITH (pages_per_range='32', autosummarize='on');

CREATE INDEX outcomes_4_job_id_idx ON graphile_worker_ext.outcomes_4 USING btree (job_id);

CREATE INDEX outcomes_4_task_identifier_succeeded_finished_at_idx ON graphile_worker_ext.outcomes_4 USING btree (task_identifier, succeeded, finished_at);

CREATE INDEX outcomes_5_finished_at_idx ON graphile_worker_ext.outcomes_5 USING btree (finished_at) WHERE (NOT succeeded);

CREATE INDEX outcomes_5_finished_at_idx1 ON graphile_worker_ext.outcomes_5 USING brin (finished_at) WITH (pages_per_range='32', autosummarize='on');

CREATE INDEX outcomes_5_job_id_idx ON graphile_worker_ext.outcomes_5 USING btree (job_id);

CREATE INDEX outcomes_5_task_identifier_succeeded_finished_at_idx ON graphile_worker_ext.outcomes_5 USING btree (task_identifier, succeeded, finished_at);

CREATE INDEX outcomes_6_finished_at_idx ON graphile_worker_ext.outcomes_6 USING btree (finished_at) WHERE (NOT succeeded);

CREATE INDEX outcomes_6_finished_at_idx1 ON graphile_worker_ext.outcomes_6 USING brin (finished_at) WITH (pages_per_range='32', autosummarize='on');

CREATE INDEX outcomes_6_job_id_idx ON graphile_worker_ext.outcomes_6 USING btree (job_id);

CREATE INDEX outcomes_6_task_identifier_succeeded_finished_at_idx ON graphile_worker_ext.outcomes_6 USING btree (task_identifier, succeeded, finished_at);

CREATE INDEX outcomes_7_finished_at_idx ON graphile_worker_ext.outcomes_7 USING btree (finished_at) WHERE (NOT succeeded);

CREATE INDEX outcomes_7_finished_at_idx1 ON graphile_worker_ext.outcomes_7 USING brin (finished_at) WITH (pages_per_range='32', autosummarize='on');

CREATE INDEX outcomes_7_job_id_idx ON graphile_worker_ext.outcomes_7 USING btree (job_id);

CREATE INDEX outcomes_7_task_identifier_succeeded_finished_at_idx ON graphile_worker_ext.outcomes_7 USING btree (task_identifier, succeeded, finished_at);

CREATE INDEX outcomes_8_finished_at_idx ON graphile_worker_ext.outcomes_8 USING btree (finished_at) WHERE (NOT succeeded);

CREATE INDEX outcomes_8_finished_at_idx1 ON graphile_worker_ext.outcomes_8 USING brin (finished_at) WITH (pages_per_range='32', autosummarize='on');

CREATE INDEX outcomes_8_job_id_idx ON graphile_worker_ext.outcomes_8 USING btree (job_id);

CREATE INDEX outcomes_8_task_identifier_succeeded_finished_at_idx ON graphile_worker_ext.outcomes_8 USING btree (task_identifier, succeeded, finished_at);

CREATE INDEX unique_keys_until ON graphile_worker_ext.unique_keys USING btree (until);

ALTER INDEX graphile_worker_ext.attempts_job_id ATTACH PARTITION graphile_worker_ext.attempts_0_job_id_idx;

ALTER INDEX graphile_worker_ext.attempts_job_id ATTACH PARTITION graphile_worker_ext.attempts_1_job_id_idx;

ALTER INDEX graphile_worker_ext.attempts_job_id ATTACH PARTITION graphile_worker_ext.attempts_2_job_id_idx;

ALTER INDEX graphile_worker_ext.attempts_job_id ATTACH PARTITION graphile_worker_ext.attempts_3_job_id_idx;

ALTER INDEX graphile_worker_ext.attempts_job_id ATTACH PARTITION graphile_worker_ext.attempts_4_job_id_idx;

ALTER INDEX graphile_worker_ext.attempts_job_id ATTACH PARTITION graphile_worker_ext.attempts_5_job_id_idx;

ALTER INDEX graphile_worker_ext.attempts_job_id ATTACH PARTITION graphile_worker_ext.attempts_6_job_id_idx;

ALTER INDEX graphile_worker_ext.attempts_job_id ATTACH PARTITION graphile_worker_ext.attempts_7_job_id_idx;

ALTER INDEX graphile_worker_ext.attempts_job_id ATTACH PARTITION graphile_worker_ext.attempts_8_job_id_idx;

ALTER INDEX graphile_worker_ext.outcomes_failed ATTACH PARTITION graphile_worker_ext.outcomes_0_finished_at_idx;

ALTER INDEX graphile_worker_ext.outcomes_finished_at ATTACH PARTITION graphile_worker_ext.outcomes_0_finished_at_idx1;

ALTER INDEX graphile_worker_ext.outcomes_job_id ATTACH PARTITION graphile_worker_ext.outcomes_0_job_id_idx;

ALTER INDEX graphile_worker_ext.outcomes_task ATTACH PARTITION graphile_worker_ext.outcomes_0_task_identifier_succeeded_finished_at_idx;

ALTER INDEX graphile_worker_ext.outcomes_failed ATTACH PARTITION graphile_worker_ext.outcomes_1_finished_at_idx;

ALTER INDEX graphile_worker_ext.outcomes_finished_at ATTACH PARTITION graphile_worker_ext.outcomes_1_finished_at_idx1;

ALTER INDEX graphile_worker_ext.outcomes_job_id ATTACH PARTITION graphile_worker_ext.outcomes_1_job_id_idx;

ALTER INDEX graphile_worker_ext.outcomes_task ATTACH PARTITION graphile_worker_ext.outcomes_1_task_identifier_succeeded_finished_at_idx;

ALTER INDEX graphile_worker_ext.outcomes_failed ATTACH PARTITION graphile_worker_ext.outcomes_2_finished_at_idx;

ALTER INDEX graphile_worker_ext.outcomes_finished_at ATTACH PARTITION graphile_worker_ext.outcomes_2_finished_at_idx1;

ALTER INDEX graphile_worker_ext.outcomes_job_id ATTACH PARTITION graphile_worker_ext.outcomes_2_job_id_idx;

ALTER INDEX graphile_worker_ext.outcomes_task ATTACH PARTITION graphile_worker_ext.outcomes_2_task_identifier_succeeded_finished_at_idx;

ALTER INDEX graphile_worker_ext.outcomes_failed ATTACH PARTITION graphile_worker_ext.outcomes_3_finished_at_idx;

ALTER INDEX graphile_worker_ext.outcomes_finished_at ATTACH PARTITION graphile_worker_ext.outcomes_3_finished_at_idx1;

ALTER INDEX graphile_worker_ext.outcomes_job_id ATTACH PARTITION graphile_worker_ext.outcomes_3_job_id_idx;

ALTER INDEX graphile_worker_ext.outcomes_task ATTACH PARTITION graphile_worker_ext.outcomes_3_task_identifier_succeeded_finished_at_idx;

ALTER INDEX graphile_worker_ext.outcomes_failed ATTACH PARTITION graphile_worker_ext.outcomes_4_finished_at_idx;

ALTER INDEX graphile_worker_ext.outcomes_finished_at ATTACH PARTITION graphile_worker_ext.outcomes_4_finished_at_idx1;

ALTER INDEX graphile_worker_ext.outcomes_job_id ATTACH PARTITION graphile_worker_ext.outcomes_4_job_id_idx;

ALTER INDEX graphile_worker_ext.outcomes_task ATTACH PARTITION graphile_worker_ext.outcomes_4_task_identifier_succeeded_finished_at_idx;

ALTER INDEX graphile_worker_ext.outcomes_failed ATTACH PARTITION graphile_worker_ext.outcomes_5_finished_at_idx;

ALTER INDEX graphile_worker_ext.outcomes_finished_at ATTACH PARTITION graphile_worker_ext.outcomes_5_finished_at_idx1;

ALTER INDEX graphile_worker_ext.outcomes_job_id ATTACH PARTITION graphile_worker_ext.outcomes_5_job_id_idx;

ALTER INDEX graphile_worker_ext.outcomes_task ATTACH PARTITION graphile_worker_ext.outcomes_5_task_identifier_succeeded_finished_at_idx;

ALTER INDEX graphile_worker_ext.outcomes_failed ATTACH PARTITION graphile_worker_ext.outcomes_6_finished_at_idx;

ALTER INDEX graphile_worker_ext.outcomes_finished_at ATTACH PARTITION graphile_worker_ext.outcomes_6_finished_at_idx1;

ALTER INDEX graphile_worker_ext.outcomes_job_id ATTACH PARTITION graphile_worker_ext.outcomes_6_job_id_idx;

ALTER INDEX graphile_worker_ext.outcomes_task ATTACH PARTITION graphile_worker_ext.outcomes_6_task_identifier_succeeded_finished_at_idx;

ALTER INDEX graphile_worker_ext.outcomes_failed ATTACH PARTITION graphile_worker_ext.outcomes_7_finished_at_idx;

ALTER INDEX graphile_worker_ext.outcomes_finished_at ATTACH PARTITION graphile_worker_ext.outcomes_7_finished_at_idx1;

ALTER INDEX graphile_worker_ext.outcomes_job_id ATTACH PARTITION graphile_worker_ext.outcomes_7_job_id_idx;

ALTER INDEX graphile_worker_ext.outcomes_task ATTACH PARTITION graphile_worker_ext.outcomes_7_task_identifier_succeeded_finished_at_idx;

ALTER INDEX graphile_worker_ext.outcomes_failed ATTACH PARTITION graphile_worker_ext.outcomes_8_finished_at_idx;

ALTER INDEX graphile_worker_ext.outcomes_finished_at ATTACH PARTITION graphile_worker_ext.outcomes_8_finished_at_idx1;

ALTER INDEX graphile_worker_ext.outcomes_job_id ATTACH PARTITION graphile_worker_ext.outcomes_8_job_id_idx;

ALTER INDEX graphile_worker_ext.outcomes_task ATTACH PARTITION graphile_worker_ext.outcomes_8_task_identifier_succeeded_finished_at_idx;

ALTER TABLE ONLY graphile_worker_ext.rates
    ADD CONSTRAINT rates_limit_name_fkey FOREIGN KEY (limit_name) REFERENCES graphile_worker_ext.limits(name) ON DELETE CASCADE;

ALTER TABLE ONLY graphile_worker_ext.slots
    ADD CONSTRAINT slots_limit_name_fkey FOREIGN KEY (limit_name) REFERENCES graphile_worker_ext.limits(name) ON DELETE CASCADE;

ALTER TABLE graphile_worker._private_job_queues ENABLE ROW LEVEL SECURITY;

ALTER TABLE graphile_worker._private_jobs ENABLE ROW LEVEL SECURITY;

ALTER TABLE graphile_worker._private_known_crontabs ENABLE ROW LEVEL SECURITY;

ALTER TABLE graphile_worker._private_tasks ENABLE ROW LEVEL SECURITY;
