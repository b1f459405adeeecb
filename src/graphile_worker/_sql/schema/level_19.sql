-- Level 19 changes no table: it shows older releases that locks belong to pools.
insert into :schema.migrations (id, breaking)
values (19, true);

select pg_catalog.pg_notify(
  'worker:migrate',
  pg_catalog.json_build_object('migrationNumber', 19, 'breaking', true)::text
);
