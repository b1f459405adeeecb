-- Delete the unique keys of jobs with ids up to $1.
delete from :ext_schema.unique_keys as keys
where keys.job_id <= $1::bigint;
