-- Keep the row of a named queue on its page: workers lock and release it for every job.
alter table :schema._private_job_queues set (
  -- Free space on the page, so that an update touches no index. It applies to new pages only.
  fillfactor = 50,
  -- Turn it on where it was turned off for a while.
  autovacuum_enabled = true,
  -- A fixed number of dead rows, not a share of all queues.
  autovacuum_vacuum_scale_factor = 0,
  -- For dead rows that updates on the page do not remove.
  autovacuum_vacuum_threshold = 1000,
  -- No pauses, as for the jobs.
  autovacuum_vacuum_cost_delay = 0
);
