-- Wait until no transaction that adds jobs is open, and keep new ones out: each of them writes to
-- this table before it uses a name.
lock table :schema._private_job_queues in share row exclusive mode;
