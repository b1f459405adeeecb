-- Return the migrations of the companion schema, with time and role.
select id, extract(epoch from applied_at)::float8, applied_by
from :ext_schema.migrations
order by id;
