select
  tasks.identifier as task,
  left(split_part(jobs.last_error, e'\n', 1), 200) as error,
  count(*) filter (where jobs.attempts >= jobs.max_attempts) as failed,
  count(*) filter (where jobs.attempts < jobs.max_attempts) as retrying,
  max(jobs.updated_at) as last
from "${schema}"._private_jobs as jobs
left join "${schema}"._private_tasks as tasks on tasks.id = jobs.task_id
where jobs.last_error is not null
  and jobs.locked_at is null
group by 1, 2
order by count(*) desc
limit 50
