-- Return the lowest id of the $2 jobs before id $1, or no row if there are fewer.
select jobs.id
from :schema._private_jobs as jobs
where jobs.id < $1::bigint
order by jobs.id desc
offset $2::int - 1
limit 1;
