-- Wait until no transaction that adds jobs is under way, and let none begin: each of them writes here
-- before it relies on a name.
lock table :schema._private_job_queues in share row exclusive mode;
