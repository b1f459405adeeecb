-- Record each change of jobs, named queues and crontabs as one row, in the transaction that makes the
-- change. The record takes no lock that another session waits for and sends no notification. It does
-- not change what a fetch returns; it only makes it slower.
create schema gw_audit;

create table gw_audit.changes (
  seq bigint generated always as identity,
  at timestamptz not null default clock_timestamp(),
  xid bigint not null,
  -- A job, a queue or a crontab: j, q, c. Inserted, updated, deleted: i, u, d; or seen when the record
  -- began: s.
  kind "char" not null,
  op "char" not null,
  app text not null,
  pid int not null,
  -- JSON arrays. A reader compares their text, without parsing it.
  old text,
  new text
);

create table gw_audit.effects (
  job_id bigint not null,
  attempt int not null,
  at timestamptz not null default clock_timestamp()
);

-- Return a long payload as its hash, followed by its `_cron` key, if it has one.
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

-- Return the recorded columns of a row as an expression. Each trigger contains it, because a function
-- call per row would take several times as long.
create function gw_audit.expression(kind text, name text)
returns text
language sql
immutable
as $gw$
  select replace(
    case kind
      when 'job' then $expression$
        json_build_array(
          row.id,
          row.job_queue_id,
          row.task_id,
          case
            when length(row.payload::text) <= 200 then row.payload::text
            else gw_audit.shortened(row.payload::text)
          end,
          row.priority,
          extract(epoch from row.run_at)::float8,
          row.attempts,
          row.max_attempts,
          left(row.last_error, 160),
          row.locked_by,
          extract(epoch from row.locked_at)::float8,
          row.key,
          row.revision,
          row.is_available
        )::text
      $expression$
      when 'queue' then $expression$
        json_build_array(
          row.id,
          row.queue_name,
          row.locked_by,
          extract(epoch from row.locked_at)::float8
        )::text
      $expression$
      when 'crontab' then $expression$
        json_build_array(
          row.identifier,
          extract(epoch from row.known_since)::float8,
          extract(epoch from row.last_execution)::float8
        )::text
      $expression$
    end,
    'row.',
    name || '.'
  );
$gw$;

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
            case when tg_op <> 'INSERT' then %3$s end,
            case when tg_op <> 'DELETE' then %4$s end
          );
          return null;
        end
        $body$
      $make$,
      kind,
      left(kind, 1),
      gw_audit.expression(kind, 'old'),
      gw_audit.expression(kind, 'new')
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

do $do$
declare
  seen text := $text$
    insert into gw_audit.changes (xid, kind, op, app, pid, new)
    select pg_current_xact_id()::text::bigint, $1::"char", 's', 'before', pg_backend_pid(),
  $text$;
begin
  execute seen || gw_audit.expression('job', 'jobs')
    || $text$ from :schema._private_jobs as jobs order by jobs.id $text$
  using 'j';
  execute seen || gw_audit.expression('queue', 'queues')
    || $text$ from :schema._private_job_queues as queues order by queues.id $text$
  using 'q';
  execute seen || gw_audit.expression('crontab', 'crontabs')
    || $text$ from :schema._private_known_crontabs as crontabs order by 6 $text$
  using 'c';
end
$do$;
