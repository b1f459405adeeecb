update :schema._private_jobs set job_queue_id = null where job_queue_id = :'id';
