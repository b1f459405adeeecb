-- Make vacuum run often: a row of a job is added, locked and deleted within moments.
alter table :schema._private_jobs set (
  -- Turn it on where it was turned off for a while.
  autovacuum_enabled = true,
  -- A fixed number of dead rows, not a share of the waiting jobs: a fetch reads all dead rows.
  autovacuum_vacuum_scale_factor = 0,
  -- 1,000 dead rows cost a fetch about ten pages; each job leaves two dead rows.
  autovacuum_vacuum_threshold = 1000,
  -- No pauses: the work is short, and more rows die during a pause.
  autovacuum_vacuum_cost_delay = 0
);
