-- Return the levels of the shared schema, with the time of each.
select id, extract(epoch from ts)::float8, breaking
from :schema.migrations
order by id;
