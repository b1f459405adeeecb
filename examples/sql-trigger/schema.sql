-- Two tables, and triggers that add jobs when their rows change.

create table users (
  id bigint generated always as identity primary key,
  email text not null,
  verified boolean not null default false
);

create table documents (
  id bigint generated always as identity primary key,
  title text not null,
  body text not null default ''
);

-- Add one job for each new row. In an after trigger the row is already written and has its id.
create function welcome_user() returns trigger language plpgsql as $$
begin
  perform graphile_worker.add_job('send_welcome', json_build_object('email', new.email));
  return null;
end;
$$;

create trigger welcome_user after insert on users
for each row execute function welcome_user();

-- One function for every table with an id. The trigger passes the task as an argument.
-- A deleted row has only an old version, and an inserted row only a new one.
create function enqueue_change() returns trigger language plpgsql as $$
begin
  perform graphile_worker.add_job(
    identifier => tg_argv[0],
    payload => json_build_object(
      'schema', tg_table_schema,
      'table', tg_table_name,
      'op', tg_op,
      'id', coalesce(new.id, old.id)
    )
  );
  return null;
end;
$$;

create trigger sync_user after insert or update or delete on users
for each row execute function enqueue_change('sync_to_crm');

create trigger drop_document after delete on documents
for each row execute function enqueue_change('drop_from_index');

-- A condition: a change of only the body draws no new cover.
create trigger draw_first_cover after insert on documents
for each row execute function enqueue_change('draw_cover');

create trigger draw_cover after update on documents
for each row when (new.title is distinct from old.title)
execute function enqueue_change('draw_cover');

-- Debounced: a document is indexed once, two seconds after it was last saved. If a worker takes
-- the job with this key at the same moment, add_job returns an empty row: call it again.
create function index_document() returns trigger language plpgsql as $$
declare
  added bigint;
begin
  while added is null loop
    select id into added
    from graphile_worker.add_job(
      identifier => 'index_document',
      payload => json_build_object('id', new.id),
      job_key => 'index_document:' || new.id,
      run_at => clock_timestamp() + interval '2 seconds'
    );
  end loop;
  return null;
end;
$$;

create trigger index_document after insert or update on documents
for each row execute function index_document();
