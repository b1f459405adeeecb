-- Return the names of the tasks $1 and of the queues $2.
select 'task', tasks.id, tasks.identifier
from :schema._private_tasks as tasks
where tasks.id = any ($1::int[])
union all
select 'queue', job_queues.id, job_queues.queue_name
from :schema._private_job_queues as job_queues
where job_queues.id = any ($2::int[]);
