-- Return those of jobs $1 that ended, as find_ended_jobs does where no outcomes can be read.
with existing as materialized (
  select
    jobs.id,
    jobs.last_error,
    jobs.attempts >= jobs.max_attempts and jobs.locked_at is null as has_failed
  from :schema._private_jobs as jobs
  where jobs.id = any ($1::bigint[])
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
  asked.id,
  null::boolean,
  null::text,
  null::text,
  null::text
from pg_catalog.unnest($1::bigint[]) as asked (id)
where asked.id not in (select existing.id from existing);
