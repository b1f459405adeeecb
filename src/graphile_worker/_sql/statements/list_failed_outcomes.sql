-- Return the newest outcomes of failed jobs, as list_outcomes does. All of them are in one small
-- index.
select :outcome_columns
from (
  select :stored_outcome_columns
  from :ext_schema.outcomes as outcomes
  where not outcomes.succeeded
    and :outcome_page
) as outcomes
order by outcomes.finished_at desc, outcomes.job_id desc;
