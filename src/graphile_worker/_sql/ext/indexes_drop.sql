-- What an installer left that died while it built: each is in the way of its successor.
drop index concurrently if exists :schema.gwpy_free_jobs;

drop index concurrently if exists :schema.gwpy_queued_jobs;

drop index concurrently if exists :schema.gwpy_jobs_of_queues;

drop index concurrently if exists :schema.gwpy_locked_jobs;
