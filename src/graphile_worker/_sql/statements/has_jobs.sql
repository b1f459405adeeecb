-- Return whether there is any job.
select exists (select from :schema._private_jobs);
