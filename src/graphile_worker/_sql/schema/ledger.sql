-- The ledger of the shared schema; safe to repeat.
create table if not exists :schema.migrations (
  id integer constraint migrations_pkey primary key,
  ts timestamptz not null default pg_catalog.now(),
  breaking boolean not null default false
);
