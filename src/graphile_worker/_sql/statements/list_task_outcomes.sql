-- Return the newest outcomes as list_outcomes does, of jobs of tasks $5 that succeeded and of tasks
-- $6 that failed. The index on tasks has the newest outcomes of each.
select :outcome_columns
from (
  select :stored_outcome_columns
  from (
    select succeeded.task, true as succeeded
    from pg_catalog.unnest($5::text[]) as succeeded (task)
    union all
    select failed.task, false
    from pg_catalog.unnest($6::text[]) as failed (task)
  ) as kinds
  cross join lateral (
    select :stored_outcome_columns
    from :ext_schema.outcomes as outcomes
    where outcomes.task_identifier = kinds.task
      and outcomes.succeeded = kinds.succeeded
      and :outcome_page
  ) as outcomes
  order by outcomes.finished_at desc, outcomes.job_id desc
  limit $4::int
) as outcomes
order by outcomes.finished_at desc, outcomes.job_id desc;
