-- The registered pools, and the jobs that they have started.
create table if not exists :ext_schema.pools (
  id text constraint pools_pkey primary key,
  started_at timestamptz not null default pg_catalog.now(),
  seen_at timestamptz not null default pg_catalog.now(),
  -- A pool without a heartbeat for this time loses its jobs. It stops working on them before.
  lease interval not null,
  started_jobs bigint[] not null default '{}',
  -- When the pool was rescued as dead. Its heartbeats no longer count. The row stays for another
  -- lease, because the pool may still lock jobs.
  swept_at timestamptz,
  details json not null
) with (fillfactor = 50);

-- Jobs that were taken over from a dead pool: how often each was running in one, and which pool
-- started it again, at which attempt.
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
