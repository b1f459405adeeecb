select
  to_char(date_trunc('hour', run_at), 'Dy HH24:MI') as due,
  count(*) as jobs
from "${schema}"._private_jobs
where attempts < max_attempts
  and run_at between now() - interval '12 hours' and now() + interval '24 hours'
group by date_trunc('hour', run_at)
order by date_trunc('hour', run_at)
