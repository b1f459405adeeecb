-- Return those of limits $1 for which one of pools $2 is the registered pool that started last, of
-- all pools that list the limit in their details under the key $3.
with listed as (
  select pools.id, pools.started_at, limits.name
  from :ext_schema.pools as pools
  cross join lateral pg_catalog.json_each(pools.details -> $3::text) as tasks (name, limits)
  cross join lateral pg_catalog.json_array_elements_text(tasks.limits) as limits (name)
  where pools.swept_at is null
    and limits.name = any ($1::text[])
), newest as (
  select distinct on (listed.name) listed.name, listed.id
  from listed
  order by listed.name, listed.started_at desc, listed.id desc
)
select newest.name
from newest
where newest.id = any ($2::text[])
order by newest.name;
