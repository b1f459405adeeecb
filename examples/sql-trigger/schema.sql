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

-- One trigger, one job for each new row. The row is already written: its id is known.
create function welcome_user() returns trigger language plpgsql as $$
begin
  perform graphile_worker.add_job('send_welcome', json_build_object('email', new.email));
  return null;
end;
$$;

create trigger welcome_user after insert on users
for each row execute function welcome_user();

-- One function for any table with an id: the trigger says which task.
-- Of a deleted row there is no new version, of a new row no old one.
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

-- Only where the condition holds: a change of the body alone draws no new cover.
create trigger draw_first_cover after insert on documents
for each row execute function enqueue_change('draw_cover');

create trigger draw_cover after update on documents
for each row when (new.title is distinct from old.title)
execute function enqueue_change('draw_cover');

-- Debounced: however often a document is saved, it is indexed once, when nobody has saved it for
-- two seconds. A key that a worker takes at this very moment gives no job; then ask again.
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
