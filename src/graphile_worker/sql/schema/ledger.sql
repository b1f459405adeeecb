-- The schema and its ledger, shared by all implementations; safe to repeat.
create schema if not exists :schema;

create table if not exists :schema.migrations (
  id integer constraint migrations_pkey primary key,
  ts timestamptz not null default now(),
  breaking boolean not null default false
);
