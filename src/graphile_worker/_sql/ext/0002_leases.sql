-- Which pools live, and which jobs they have started.
create table if not exists :ext_schema.pools (
  id text constraint pools_pkey primary key,
  started_at timestamptz not null default pg_catalog.now(),
  seen_at timestamptz not null default pg_catalog.now(),
  -- Not seen for so long, it may lose its jobs; it promises to have given them up by then.
  lease interval not null,
  started_jobs bigint[] not null default '{}',
  -- Taken for dead: its heartbeats are not heard any more. The row stays for another lease, for what
  -- it may still lock.
  swept_at timestamptz,
  details json not null
) with (fillfactor = 50);

-- Jobs that were taken from a silent pool: how often one of them was running there, and who began
-- to run it again, at which attempt.
create table if not exists :ext_schema.recoveries (
  job_id bigint constraint recoveries_pkey primary key,
  count integer not null,
  recovered_at timestamptz not null default pg_catalog.now(),
  started_by text,
  started_attempt integer
);

insert into :ext_schema.migrations (id, name)
values (2, '0002_leases')
on conflict do nothing;
