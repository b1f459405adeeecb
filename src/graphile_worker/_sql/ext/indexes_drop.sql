-- Drop an incomplete index of an aborted build, so that it can be built again.
drop index concurrently if exists :schema.gwpy_free_jobs;

drop index concurrently if exists :schema.gwpy_queued_jobs;

drop index concurrently if exists :schema.gwpy_jobs_of_queues;

drop index concurrently if exists :schema.gwpy_locked_jobs;
