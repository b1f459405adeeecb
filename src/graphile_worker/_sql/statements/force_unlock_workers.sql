-- Unlock all jobs and queues of pools $1, which must be dead.
select :schema.force_unlock_workers($1::text[]);
