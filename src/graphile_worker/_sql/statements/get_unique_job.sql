-- Return the id of the job that began the window of key $1, open or not.
select keys.job_id
from :ext_schema.unique_keys as keys
where keys.key = $1::text;
