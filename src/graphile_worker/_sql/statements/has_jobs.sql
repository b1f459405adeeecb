-- Is there any job at all?
select exists (select from :schema._private_jobs);
