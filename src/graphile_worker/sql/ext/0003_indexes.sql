-- What a fetch finds its jobs by, whatever else lies in the table. Names that start with gwpy_ are
-- ours; nobody else looks at them. For a table that is in use, see indexes_concurrently.
create index if not exists gwpy_free_jobs
on :schema._private_jobs (task_id, priority, run_at, id)
where is_available = true and job_queue_id is null;

create index if not exists gwpy_queued_jobs
on :schema._private_jobs (task_id, priority, run_at, id) include (job_queue_id)
where is_available = true and job_queue_id is not null;

create index if not exists gwpy_jobs_of_queues
on :schema._private_jobs (job_queue_id, priority, run_at, id) include (task_id)
where is_available = true and job_queue_id is not null;

-- To find what a worker has locked without reading the whole table. By a collation of its own and
-- where locked_at, not locked_by, is set, so that only statements which say both use this index: it is
-- full of entries of jobs that have ended, and a completion must go by the primary key.
create index if not exists gwpy_locked_jobs
on :schema._private_jobs (locked_by collate pg_catalog."C")
where locked_at is not null;

insert into :ext_schema.migrations (id, name)
values (3, '0003_indexes')
on conflict do nothing;
