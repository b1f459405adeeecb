-- Return the names of at most $1 tasks, in their order.
select tasks.identifier
from :schema._private_tasks as tasks
order by tasks.identifier
limit $1::int;
