-- Is there any job?
select exists (select from :schema._private_jobs);
