-- Level 20 in one step, for an empty ledger. Its rows come first: another installer waits on row 1,
-- then finds all levels recorded.
insert into :schema.migrations (id, breaking)
select level, level in (1, 3, 11, 13, 14, 16, 19)
from pg_catalog.generate_series(1, 20) as level
order by level;

-- Some names below have suffixes from earlier levels: later migrations of Graphile Worker for Node
-- may use them.
create table :schema._private_tasks (
  id integer generated always as identity (sequence name :schema.tasks_id_seq)
    constraint tasks_pkey primary key,
  identifier text not null
    constraint tasks_identifier_key unique
    constraint tasks_identifier_check check (pg_catalog.length(identifier) <= 128)
);

create table :schema._private_job_queues (
  id integer generated always as identity (sequence name :schema.job_queues_id_seq)
    constraint job_queues_pkey1 primary key,
  queue_name text not null
    constraint job_queues_queue_name_key unique
    constraint job_queues_queue_name_check check (pg_catalog.length(queue_name) <= 128),
  locked_at timestamptz,
  locked_by text,
  is_available boolean not null generated always as (locked_at is null) stored
);

create table :schema._private_jobs (
  id bigint generated always as identity (sequence name :schema.jobs_id_seq1)
    constraint jobs_pkey1 primary key,
  job_queue_id integer,
  task_id integer not null,
  payload json not null default '{}'::json,
  priority smallint not null default 0,
  run_at timestamptz not null default pg_catalog.now(),
  attempts smallint not null default 0,
  max_attempts smallint not null default 25
    constraint jobs_max_attempts_check check (max_attempts >= 1),
  last_error text,
  created_at timestamptz not null default pg_catalog.now(),
  updated_at timestamptz not null default pg_catalog.now(),
  key text
    constraint jobs_key_key1 unique
    constraint jobs_key_check check (pg_catalog.length(key) > 0 and pg_catalog.length(key) <= 512),
  locked_at timestamptz,
  locked_by text,
  revision integer not null default 0,
  flags jsonb,
  is_available boolean not null
    generated always as (locked_at is null and attempts < max_attempts) stored
);

create index jobs_main_index
on :schema._private_jobs (priority, run_at) include (id, task_id, job_queue_id)
where is_available = true;

create index jobs_no_queue_index
on :schema._private_jobs (priority, run_at) include (id, task_id)
where is_available = true and job_queue_id is null;

create table :schema._private_known_crontabs (
  identifier text constraint known_crontabs_pkey primary key,
  known_since timestamptz not null,
  last_execution timestamptz
);

-- Without policies the owner sees all rows and other roles none, unless a DBA adds a policy.
alter table :schema._private_tasks enable row level security;

alter table :schema._private_job_queues enable row level security;

alter table :schema._private_jobs enable row level security;

alter table :schema._private_known_crontabs enable row level security;

-- For people and tools, without payloads.
create view :schema.jobs as
select
  jobs.id,
  job_queues.queue_name,
  tasks.identifier as task_identifier,
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
from :schema._private_jobs as jobs
join :schema._private_tasks as tasks on tasks.id = jobs.task_id
left join :schema._private_job_queues as job_queues on job_queues.id = jobs.job_queue_id;

create type :schema.job_spec as (
  identifier text,
  payload json,
  queue_name text,
  run_at timestamptz,
  max_attempts smallint,
  job_key text,
  priority smallint,
  flags text[]
);

-- Delete the job with this key, or prevent another attempt if it is running.
create or replace function :schema.remove_job(job_key text)
returns :schema._private_jobs
language plpgsql
strict
as $gw$
declare
  removed :schema._private_jobs;
begin
  delete from :schema._private_jobs as jobs
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

  update :schema._private_jobs as jobs
  set key = null,
      attempts = jobs.max_attempts,
      updated_at = pg_catalog.now()
  where jobs.key = remove_job.job_key
  returning jobs.* into removed;

  return removed;
end;
$gw$;

-- Delete these jobs as completed, except jobs that a worker has locked.
create or replace function :schema.complete_jobs(job_ids bigint[])
returns setof :schema._private_jobs
language sql
as $gw$
  delete from :schema._private_jobs as jobs
  where jobs.id = any (complete_jobs.job_ids)
    and (jobs.locked_at is null or jobs.locked_at < pg_catalog.now() - interval '4 hours')
  returning jobs.*;
$gw$;

-- Use up all attempts of these jobs, with a reason, except jobs that a worker has locked.
create or replace function :schema.permanently_fail_jobs(
  job_ids bigint[],
  error_message text default null
)
returns setof :schema._private_jobs
language sql
as $gw$
  update :schema._private_jobs as jobs
  set last_error = coalesce(permanently_fail_jobs.error_message, 'Manually marked as failed'),
      attempts = jobs.max_attempts,
      updated_at = pg_catalog.now()
  where jobs.id = any (permanently_fail_jobs.job_ids)
    and (jobs.locked_at is null or jobs.locked_at < pg_catalog.now() - interval '4 hours')
  returning jobs.*;
$gw$;

-- Change the given values of these jobs, except jobs that a worker has locked.
create or replace function :schema.reschedule_jobs(
  job_ids bigint[],
  run_at timestamptz default null,
  priority integer default null,
  attempts integer default null,
  max_attempts integer default null
)
returns setof :schema._private_jobs
language sql
as $gw$
  update :schema._private_jobs as jobs
  set run_at = coalesce(reschedule_jobs.run_at, jobs.run_at),
      priority = coalesce(reschedule_jobs.priority::smallint, jobs.priority),
      attempts = coalesce(reschedule_jobs.attempts::smallint, jobs.attempts),
      max_attempts = coalesce(reschedule_jobs.max_attempts::smallint, jobs.max_attempts),
      updated_at = pg_catalog.now()
  where jobs.id = any (reschedule_jobs.job_ids)
    and (jobs.locked_at is null or jobs.locked_at < pg_catalog.now() - interval '4 hours')
  returning jobs.*;
$gw$;

-- Unlock the jobs of these pools, which must be dead: a job that is still running may run twice.
create or replace function :schema.force_unlock_workers(worker_ids text[])
returns void
language sql
as $gw$
  update :schema._private_jobs as jobs
  set locked_at = null,
      locked_by = null
  where jobs.locked_by = any (force_unlock_workers.worker_ids);

  update :schema._private_job_queues as job_queues
  set locked_at = null,
      locked_by = null
  where job_queues.locked_by = any (force_unlock_workers.worker_ids);
$gw$;

select pg_catalog.pg_notify(
  'worker:migrate',
  pg_catalog.json_build_object('migrationNumber', 20, 'breaking', false)::text
);
