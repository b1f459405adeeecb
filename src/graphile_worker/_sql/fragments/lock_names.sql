-- Insert no names, but lock their tables as add_jobs does: until this transaction ends, a cleanup
-- cannot delete the names that it uses.
lock_tasks as (
  insert into :schema._private_tasks (identifier)
  select null::text
  where false
), lock_queues as (
  insert into :schema._private_job_queues (queue_name)
  select null::text
  where false
)
