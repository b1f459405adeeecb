-- The database's own record of what becomes of jobs, named queues and crontabs: one row per change,
-- written by whoever makes it, in the same transaction. It takes no lock that anybody waits for, and
-- says nothing: a fetch is as it was, only slower.
create schema gw_audit;

create table gw_audit.changes (
  seq bigint generated always as identity,
  at timestamptz not null default clock_timestamp(),
  xid bigint not null,
  -- j(ob), q(ueue) or c(rontab); i(nsert), u(pdate), d(elete), or s(een before all began).
  kind "char" not null,
  op "char" not null,
  app text not null,
  pid int not null,
  -- JSON arrays: a reader knows two equal ones by their text, without reading them.
  old text,
  new text
);

create table gw_audit.effects (
  job_id bigint not null,
  attempt int not null,
  at timestamptz not null default clock_timestamp()
);

-- What is too long to be kept is kept as its hash, and what a crontab has put there, as it is.
create function gw_audit.shortened(payload text)
returns text
language sql
immutable
as $gw$
  select case
    when length(payload) <= 200 then payload
    else 'md5:' || md5(payload) || ' ' || coalesce(
      case when strpos(payload, '"_cron"') > 0
        then left(substring(payload from '"_cron"\s*:\s*\{[^}]*\}'), 200)
      end,
      ''
    )
  end;
$gw$;

create function gw_audit.job(job :schema._private_jobs)
returns text
language sql
stable
as $gw$
  select json_build_array(
    job.id,
    job.job_queue_id,
    job.task_id,
    gw_audit.shortened(job.payload::text),
    job.priority,
    extract(epoch from job.run_at)::float8,
    job.attempts,
    job.max_attempts,
    left(job.last_error, 160),
    job.locked_by,
    extract(epoch from job.locked_at)::float8,
    job.key,
    job.revision,
    job.is_available
  )::text;
$gw$;

create function gw_audit.queue(queue :schema._private_job_queues)
returns text
language sql
stable
as $gw$
  select json_build_array(
    queue.id,
    queue.queue_name,
    queue.locked_by,
    extract(epoch from queue.locked_at)::float8
  )::text;
$gw$;

create function gw_audit.crontab(crontab :schema._private_known_crontabs)
returns text
language sql
stable
as $gw$
  select json_build_array(
    crontab.identifier,
    extract(epoch from crontab.known_since)::float8,
    extract(epoch from crontab.last_execution)::float8
  )::text;
$gw$;

-- One function per table: a plan is kept for each.
do $do$
declare
  kind text;
begin
  foreach kind in array array['job', 'queue', 'crontab'] loop
    execute format(
      $make$
        create function gw_audit.record_%1$s()
        returns trigger
        language plpgsql
        as $body$
        begin
          insert into gw_audit.changes (xid, kind, op, app, pid, old, new)
          values (
            pg_current_xact_id()::text::bigint,
            %2$L,
            lower(left(tg_op, 1))::"char",
            current_setting('application_name'),
            pg_backend_pid(),
            case when tg_op <> 'INSERT' then gw_audit.%1$s(old) end,
            case when tg_op <> 'DELETE' then gw_audit.%1$s(new) end
          );
          return null;
        end
        $body$
      $make$,
      kind,
      left(kind, 1)
    );
  end loop;
end
$do$;

create trigger gw_audit
after insert or update or delete on :schema._private_jobs
for each row execute function gw_audit.record_job();

create trigger gw_audit
after insert or update or delete on :schema._private_job_queues
for each row execute function gw_audit.record_queue();

create trigger gw_audit
after insert or update or delete on :schema._private_known_crontabs
for each row execute function gw_audit.record_crontab();

insert into gw_audit.changes (xid, kind, op, app, pid, new)
select pg_current_xact_id()::text::bigint, 'j', 's', 'before', pg_backend_pid(), gw_audit.job(jobs)
from :schema._private_jobs as jobs
order by jobs.id;

insert into gw_audit.changes (xid, kind, op, app, pid, new)
select pg_current_xact_id()::text::bigint, 'q', 's', 'before', pg_backend_pid(), gw_audit.queue(queues)
from :schema._private_job_queues as queues
order by queues.id;

insert into gw_audit.changes (xid, kind, op, app, pid, new)
select
  pg_current_xact_id()::text::bigint, 'c', 's', 'before', pg_backend_pid(), gw_audit.crontab(crontabs)
from :schema._private_known_crontabs as crontabs
order by crontabs.identifier;
