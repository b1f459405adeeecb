select
  pg_catalog.to_char(pg_catalog.date_trunc('hour', run_at), 'Dy HH24:MI') as due,
  pg_catalog.count(*) as jobs
from "${schema}"._private_jobs
where attempts < max_attempts
  and run_at between pg_catalog.now() - interval '12 hours' and pg_catalog.now() + interval '24 hours'
group by pg_catalog.date_trunc('hour', run_at)
order by pg_catalog.date_trunc('hour', run_at)
