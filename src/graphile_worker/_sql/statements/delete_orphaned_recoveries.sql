-- Forget recoveries of jobs that are gone.
delete from :ext_schema.recoveries as recoveries
where not exists (select from :schema._private_jobs as jobs where jobs.id = recoveries.job_id);
