-- The steps that were entered in the companion schema, when and by whom.
select id, extract(epoch from applied_at)::float8, applied_by
from :ext_schema.migrations
order by id;
