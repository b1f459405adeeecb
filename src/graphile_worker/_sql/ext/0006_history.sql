-- What became of jobs: outcomes and attempts, in a ring of nine partitions. All writes go to one
-- slot. Rotation moves on to the next slot, and truncates it before. So nothing is deleted row by
-- row, and no table is created while workers run.
create table if not exists :ext_schema.history (
  name text constraint history_pkey primary key,
  -- The slot that is written to.
  slot smallint not null default 0,
  -- When each slot was written to first. A slot ends where the next one starts.
  started_at timestamptz[] not null,
  -- How long outcomes are kept, 7 days if null.
  keep interval,
  -- Rotate early when a slot has an eighth of this number of outcomes.
  max_rows bigint
);

create table if not exists :ext_schema.outcomes (
  job_id bigint not null,
  created_at timestamptz not null,
  run_at timestamptz not null,
  -- The last attempt.
  started_at timestamptz not null,
  finished_at timestamptz not null,
  -- Readers hide the row after this time, if its task keeps outcomes for less than the schema.
  expires_at timestamptz,
  slot smallint not null,
  succeeded boolean not null,
  -- For roles that may not read results.
  has_result boolean not null default false,
  attempts smallint not null,
  task_identifier text not null,
  pool_id text not null,
  -- Null if the task keeps no results. A result of None is the JSON value null.
  result json,
  -- Of the job. Null unless the task keeps payloads.
  payload json,
  priority smallint,
  error text,
  -- Where Python finds the class of the error, for example builtins.ValueError.
  error_class text
) partition by list (slot);

create table if not exists :ext_schema.attempts (
  job_id bigint not null,
  started_at timestamptz not null,
  expires_at timestamptz,
  duration real not null,
  slot smallint not null,
  attempt smallint not null,
  pool_id text not null,
  error text,
  error_class text
) partition by list (slot);

create table if not exists :ext_schema.outcomes_0 partition of :ext_schema.outcomes for values in (0);
create table if not exists :ext_schema.outcomes_1 partition of :ext_schema.outcomes for values in (1);
create table if not exists :ext_schema.outcomes_2 partition of :ext_schema.outcomes for values in (2);
create table if not exists :ext_schema.outcomes_3 partition of :ext_schema.outcomes for values in (3);
create table if not exists :ext_schema.outcomes_4 partition of :ext_schema.outcomes for values in (4);
create table if not exists :ext_schema.outcomes_5 partition of :ext_schema.outcomes for values in (5);
create table if not exists :ext_schema.outcomes_6 partition of :ext_schema.outcomes for values in (6);
create table if not exists :ext_schema.outcomes_7 partition of :ext_schema.outcomes for values in (7);
create table if not exists :ext_schema.outcomes_8 partition of :ext_schema.outcomes for values in (8);

create table if not exists :ext_schema.attempts_0 partition of :ext_schema.attempts for values in (0);
create table if not exists :ext_schema.attempts_1 partition of :ext_schema.attempts for values in (1);
create table if not exists :ext_schema.attempts_2 partition of :ext_schema.attempts for values in (2);
create table if not exists :ext_schema.attempts_3 partition of :ext_schema.attempts for values in (3);
create table if not exists :ext_schema.attempts_4 partition of :ext_schema.attempts for values in (4);
create table if not exists :ext_schema.attempts_5 partition of :ext_schema.attempts for values in (5);
create table if not exists :ext_schema.attempts_6 partition of :ext_schema.attempts for values in (6);
create table if not exists :ext_schema.attempts_7 partition of :ext_schema.attempts for values in (7);
create table if not exists :ext_schema.attempts_8 partition of :ext_schema.attempts for values in (8);

create index if not exists outcomes_job_id on :ext_schema.outcomes (job_id);
create index if not exists outcomes_task
on :ext_schema.outcomes (task_identifier, succeeded, finished_at);
-- Small, because few jobs fail.
create index if not exists outcomes_failed
on :ext_schema.outcomes (finished_at) where not succeeded;
-- For a range of time: rows come in its order, so it holds the range of each group of pages.
create index if not exists outcomes_finished_at
on :ext_schema.outcomes using brin (finished_at) with (pages_per_range = 32, autosummarize = on);
create index if not exists attempts_job_id on :ext_schema.attempts (job_id);

insert into :ext_schema.history (name, started_at)
values (
  'outcomes',
  pg_catalog.array_prepend(
    pg_catalog.now(), pg_catalog.array_fill('-infinity'::timestamptz, array[8])
  )
)
on conflict do nothing;

-- Rotate the ring, and return false if another process does so. In one statement: a program that
-- stops between two of them would block readers of the emptied slots.
create or replace function :ext_schema.rotate_history(
  seen_slot smallint,
  seen_starts timestamptz[],
  next_slot smallint,
  next_starts timestamptz[],
  emptied_slots int[],
  -- For each of them, the time of the last row that may be lost.
  emptied_until timestamptz[]
)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
-- Readers and writers queue behind a lock that waits.
set lock_timeout = '250ms'
as $gw$
declare
  schema_name text := (
    select class.relnamespace::regnamespace::text
    from pg_catalog.pg_type as type
    join pg_catalog.pg_class as class on class.oid = type.typrelid
    where type.oid = pg_catalog.pg_typeof(cast(null as :ext_schema.outcomes))::oid
  );
  slot_tables text[] := '{}';
begin
  perform
  from :ext_schema.history as history
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
      from :ext_schema.outcomes as outcomes
      where outcomes.slot = emptied_slots[n]
        and outcomes.finished_at > emptied_until[n]
    ) or exists (
      select
      from :ext_schema.attempts as attempts
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
  update :ext_schema.history as history
  set slot = next_slot,
      started_at = next_starts
  where history.name = 'outcomes';
  return true;
end;
$gw$;

-- Progress of running jobs. Unlogged, because a crash may lose it.
create unlogged table if not exists :ext_schema.progress (
  job_id bigint constraint progress_pkey primary key,
  pool_id text not null,
  fraction double precision,
  message text,
  -- When the task reported.
  updated_at timestamptz not null
) with (fillfactor = 50);

-- Changes by people and their tools. Roles may insert rows, not change them.
create table if not exists :ext_schema.audit (
  id bigint generated always as identity constraint audit_pkey primary key,
  at timestamptz not null default pg_catalog.now(),
  -- Who, as the program reports it. The role is what the database knows.
  actor text,
  role text not null default session_user,
  action text not null,
  filter text,
  job_ids bigint[] not null default '{}',
  count bigint not null default 0,
  note text
);

insert into :ext_schema.migrations (id, name)
values (6, '0006_history')
on conflict do nothing;
