-- Optional: record changes of jobs by psql and other tools in the audit. Run as the owner of the
-- schemas, after the migration, and again after you change the lists of roles. Idempotent.
create or replace function graphile_worker_ext.audit_direct_change()
returns trigger
language plpgsql
-- Roles that change jobs need no privileges on the audit.
security definer
-- Ignore the caller's search path, so that none of its functions, operators or tables are used.
set search_path = pg_catalog, pg_temp
as $body$
begin
  -- The commands and clients of this package add their own entry.
  if pg_catalog.current_setting('gwpy.audited', true) = 'on' then
    return null;
  end if;
  if tg_op = 'TRUNCATE' then
    insert into graphile_worker_ext.audit (action) values ('direct truncate');
    return null;
  end if;
  insert into graphile_worker_ext.audit (action, job_ids, count)
  select
    'direct ' || pg_catalog.lower(tg_op),
    pg_catalog.array_agg(numbered.id order by numbered.id),
    pg_catalog.count(*)
  from (
    select
      old_jobs.id,
      (pg_catalog.row_number() over (order by old_jobs.id) - 1) / 1000 as batch
    from old_jobs
  ) as numbered
  group by numbered.batch
  order by numbered.batch;
  return null;
end;
$body$;

revoke all on function graphile_worker_ext.audit_direct_change from public;

-- List the roles with which workers and programs log in. Their changes are not recorded.
create or replace trigger gwpy_audit_update
after update on graphile_worker._private_jobs
referencing old table as old_jobs
for each statement
when (session_user <> all ('{queue_worker,queue_enqueuer}'::name[]))
execute function graphile_worker_ext.audit_direct_change();

create or replace trigger gwpy_audit_delete
after delete on graphile_worker._private_jobs
referencing old table as old_jobs
for each statement
when (session_user <> all ('{queue_worker,queue_enqueuer}'::name[]))
execute function graphile_worker_ext.audit_direct_change();

create or replace trigger gwpy_audit_truncate
after truncate on graphile_worker._private_jobs
for each statement
execute function graphile_worker_ext.audit_direct_change();
