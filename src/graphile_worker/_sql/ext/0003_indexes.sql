-- The indexes with which a claim finds its jobs in a table of any size. Names that start with gwpy_
-- belong to this package. Other implementations do not use them. For a table with rows, see
-- indexes_concurrently.
create index if not exists gwpy_free_jobs
on :schema._private_jobs (task_id, priority, run_at, id)
where is_available = true and job_queue_id is null;

create index if not exists gwpy_queued_jobs
on :schema._private_jobs (task_id, priority, run_at, id) include (job_queue_id)
where is_available = true and job_queue_id is not null;

create index if not exists gwpy_jobs_of_queues
on :schema._private_jobs (job_queue_id, priority, run_at, id) include (task_id)
where is_available = true and job_queue_id is not null;

-- Finds locked jobs without reading the whole table: it holds the ranges of pages with locked rows,
-- and when they were locked. A B-tree holds each row, and writing to it at each claim costs a tenth
-- of the throughput.
create index if not exists gwpy_locked_jobs
on :schema._private_jobs using brin (locked_at) with (pages_per_range = 32)
where locked_at is not null;

insert into :ext_schema.migrations (id, name)
values (3, '0003_indexes')
on conflict do nothing;
