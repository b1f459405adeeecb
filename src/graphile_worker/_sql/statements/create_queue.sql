-- Create named queue $1 if it does not exist, as add_job does.
insert into :schema._private_job_queues (queue_name)
select $1::text
where not exists (
  select from :schema._private_job_queues as job_queues where job_queues.queue_name = $1::text
)
on conflict do nothing;
