-- Return the newest outcomes that the conditions select, at most $4: from time $1 on, and before
-- time $2 and job id $3.
select :outcome_columns
from (
  select :stored_outcome_columns
  from :ext_schema.outcomes as outcomes
  where :outcome_page
) as outcomes
order by outcomes.finished_at desc, outcomes.job_id desc;
