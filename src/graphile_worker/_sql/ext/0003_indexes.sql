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

-- To find what is locked without reading the whole table: which ranges of pages hold rows that were
-- locked, and when. Kept per range and not per row, as each claim would have to enter a B-tree, which
-- costs a tenth of the throughput.
create index if not exists gwpy_locked_jobs
on :schema._private_jobs using brin (locked_at) with (pages_per_range = 32)
where locked_at is not null;

insert into :ext_schema.migrations (id, name)
values (3, '0003_indexes')
on conflict do nothing;
