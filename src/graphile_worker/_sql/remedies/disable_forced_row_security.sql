alter table :schema._private_jobs no force row level security;
alter table :schema._private_job_queues no force row level security;
alter table :schema._private_tasks no force row level security;
alter table :schema._private_known_crontabs no force row level security;
