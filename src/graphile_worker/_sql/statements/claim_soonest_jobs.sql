-- Claim jobs like claim_jobs, of the soonest jobs only.
--
-- That is enough for jobs of unlocked named queues, at a third of the work. The first ready jobs
-- are claimed, but there may be more. An empty result does not mean that no job is ready: run
-- claim_jobs then. The steps have the form of claim_jobs for the same reasons.
--
-- From position $6, $7 on, earlier jobs are not read, so only the first job of a named queue is
-- claimed: the jobs of a queue run in order. That needs the index gwpy_jobs_of_queues.
with :claim_params,
:soonest_jobs,
:soonest_candidates,
candidates as (
  select near.id, near.job_queue_id
  from near
  where case
    when near.job_queue_id is null or $6::int is null then true
    else near.id = (
      select jobs.id
      from :schema._private_jobs as jobs
      where jobs.is_available = true
        and jobs.job_queue_id = near.job_queue_id
      order by jobs.priority, jobs.run_at, jobs.id
      limit 1
    )
  end
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
