select
  tasks.identifier as task,
  pg_catalog.left(pg_catalog.split_part(jobs.last_error, e'\n', 1), 200) as error,
  pg_catalog.count(*) filter (where jobs.attempts >= jobs.max_attempts) as failed,
  pg_catalog.count(*) filter (where jobs.attempts < jobs.max_attempts) as retrying,
  pg_catalog.max(jobs.updated_at) as last
from "${schema}"._private_jobs as jobs
left join "${schema}"._private_tasks as tasks on tasks.id = jobs.task_id
where jobs.last_error is not null
  and jobs.locked_at is null
group by 1, 2
order by pg_catalog.count(*) desc
limit 50
