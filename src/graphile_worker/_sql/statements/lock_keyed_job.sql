-- Lock the job with key $1, so that it stays until the end of the transaction.
select jobs.id
from :schema._private_jobs as jobs
where jobs.key = $1::text
for update;
