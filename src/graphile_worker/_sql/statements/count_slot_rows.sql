-- Count the outcomes in slot $1, up to $2.
select pg_catalog.count(*)
from (
  select
  from :ext_schema.outcomes as outcomes
  where outcomes.slot = $1::smallint
  limit $2::bigint
) as outcomes;
