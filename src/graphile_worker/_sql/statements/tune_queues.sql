-- Keep the row of a named queue where it is: it is locked and freed for every job.
alter table :schema._private_job_queues set (
  -- Room on the page, so that locking and freeing touch no index. Pages that are full stay so.
  fillfactor = 50,
  -- Also where somebody turned it off for a while and forgot.
  autovacuum_enabled = true,
  -- By a count of dead rows, not by a share of all queues.
  autovacuum_vacuum_scale_factor = 0,
  -- What pages do not tidy up by themselves.
  autovacuum_vacuum_threshold = 1000,
  -- Without pauses, as for the jobs.
  autovacuum_vacuum_cost_delay = 0
);
