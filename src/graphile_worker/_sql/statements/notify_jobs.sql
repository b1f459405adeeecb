-- Notify workers that $1 jobs are ready.
select pg_catalog.pg_notify(
  'jobs:insert',
  pg_catalog.json_build_object('r', pg_catalog.random(), 'count', $1::int)::text
);
