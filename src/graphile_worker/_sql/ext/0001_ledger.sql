-- The ledger of the companion schema.
create table if not exists :ext_schema.migrations (
  id integer constraint migrations_pkey primary key,
  name text not null,
  applied_at timestamptz not null default pg_catalog.now(),
  applied_by text not null default current_user
);

insert into :ext_schema.migrations (id, name)
values (1, '0001_ledger')
on conflict do nothing;
