-- Return those of jobs $1 that ended: permanently failed, with their error, or deleted, with their
-- newest outcome if there is one. Outcomes are looked up only for deleted jobs. Sets are compared by
-- hashed subplans, because the planner expects few jobs and would join thousands by nested loops.
with existing as materialized (
  select
    jobs.id,
    jobs.last_error,
    jobs.attempts >= jobs.max_attempts and jobs.locked_at is null as has_failed
  from :schema._private_jobs as jobs
  where jobs.id = any ($1::bigint[])
), deleted as materialized (
  select asked.id
  from pg_catalog.unnest($1::bigint[]) as asked (id)
  where asked.id not in (select existing.id from existing)
), found as materialized (
  select distinct on (outcomes.job_id)
    outcomes.job_id,
    outcomes.succeeded,
    outcomes.task_identifier,
    outcomes.result,
    outcomes.error
  from :ext_schema.outcomes as outcomes
  -- An array, not a join, so that each partition is searched by its index once.
  where outcomes.job_id = any (array(select deleted.id from deleted))
    and (outcomes.expires_at is null or outcomes.expires_at > pg_catalog.now())
  order by outcomes.job_id, outcomes.finished_at desc
)
select
  existing.id,
  false as succeeded,
  null::text as task_identifier,
  null::text as result,
  existing.last_error as error
from existing
where existing.has_failed
union all
select
  found.job_id,
  found.succeeded,
  found.task_identifier,
  found.result::text,
  found.error
from found
union all
select
  deleted.id,
  null::boolean,
  null::text,
  null::text,
  null::text
from deleted
where deleted.id not in (select found.job_id from found);
