-- Take jobs as claim_jobs does, of the soonest ones alone.
--
-- Enough for jobs of named queues that wait for nothing, and a third of the work. What is taken is
-- the best there is, but there may be more; an empty answer says nothing: ask claim_jobs. The steps
-- are written as they are for the same reasons as there.
with :claim_params,
:soonest_jobs,
:soonest_candidates,
candidates as (
  select id, job_queue_id
  from near
),
:lock_jobs,
taken as (
  select id, job_queue_id
  from together
),
:claim_locked_jobs;
