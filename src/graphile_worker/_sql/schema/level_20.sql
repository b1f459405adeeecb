-- Level 20 replaces the two functions of add_jobs.sql, which is run in the same transaction.
insert into :schema.migrations (id, breaking)
values (20, false);

select pg_catalog.pg_notify(
  'worker:migrate',
  pg_catalog.json_build_object('migrationNumber', 20, 'breaking', false)::text
);
