-- Delete the recoveries of jobs that no longer exist.
delete from :ext_schema.recoveries as recoveries
where not exists (select from :schema._private_jobs as jobs where jobs.id = recoveries.job_id);
