-- Return the rows of the task identifiers $1.
select tasks.id, tasks.identifier
from :schema._private_tasks as tasks
where tasks.identifier = any ($1::text[]);
