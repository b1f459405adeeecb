-- The payloads of these jobs may show which task it was.
select id, payload, created_at, last_error from :schema._private_jobs where task_id = :'id' limit 10;
-- Put its name in both places:
insert into :schema._private_tasks (identifier) values ('the-task') on conflict do nothing;
update :schema._private_jobs
set task_id = (select id from :schema._private_tasks where identifier = 'the-task')
where task_id = :'id' and locked_at is null;
