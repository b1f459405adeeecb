-- Keep workers from claiming jobs of named queue $1 until this transaction ends. Returns its id and
-- who has locked it, or no row if another session has locked the row itself. This lock conflicts
-- with that of a claim, not with the update that completes a job: so the next session to lock the
-- queue is this one, and no worker waits for it.
select job_queues.id, job_queues.locked_by, job_queues.locked_at is not null
from :schema._private_job_queues as job_queues
where job_queues.queue_name = $1::text
for key share skip locked;
