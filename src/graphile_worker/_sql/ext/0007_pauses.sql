-- Paused tasks and named queues: who paused them, why, and until when. Workers do not fetch jobs of
-- a paused task. What pauses a named queue is the lock of its row: its row here only describes it.
create table if not exists :ext_schema.pauses (
  kind text not null constraint pauses_kind_check check (kind in ('task', 'queue')),
  name text not null,
  paused_by text not null,
  reason text,
  since timestamptz not null default pg_catalog.now(),
  -- When the pause ends by itself. Null if only a person ends it.
  until timestamptz,
  constraint pauses_pkey primary key (kind, name)
);

insert into :ext_schema.migrations (id, name)
values (7, '0007_pauses')
on conflict do nothing;
