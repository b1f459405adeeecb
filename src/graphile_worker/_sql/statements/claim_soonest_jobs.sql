-- Claim jobs like claim_jobs, of the soonest jobs only.
--
-- That is enough for jobs of unlocked named queues, at a third of the work. The first ready jobs
-- are claimed, but there may be more. An empty result does not mean that no job is ready: run
-- claim_jobs then. The steps have the form of claim_jobs for the same reasons.
with :claim_params,
:soonest_jobs,
:soonest_candidates,
candidates as (
  select id, job_queue_id
  from near
),
:lock_jobs,
jobs_to_claim as (
  select id, job_queue_id
  from locked_candidates
),
:claim_locked_jobs,
  -- If the search read all jobs: how many are ready, or will be before the next fetch.
  (
    select case
        when pg_catalog.count(*) < (select enough from params) and $6::int is null then
          pg_catalog.count(*) filter (
            where run_at <= (select claim_time + interval '20 milliseconds' from params)
          )
      end
    from soonest
  );
