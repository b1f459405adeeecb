-- Let vacuum follow the jobs closely: a row is added, locked and deleted within moments.
alter table :schema._private_jobs set (
  -- Also where somebody turned it off for a while and forgot.
  autovacuum_enabled = true,
  -- By a count of dead rows, not by a share of the jobs that wait: a fetch walks past all dead ones.
  autovacuum_vacuum_scale_factor = 0,
  -- So many dead rows cost a fetch some ten pages; each job leaves two.
  autovacuum_vacuum_threshold = 1000,
  -- Without pauses: it is short work, and while it rests more rows die.
  autovacuum_vacuum_cost_delay = 0
);
