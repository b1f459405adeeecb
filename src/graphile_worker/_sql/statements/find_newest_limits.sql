-- Return those of limits $1 for which one of pools $2 is the registered pool that started last, of
-- all pools that list the limit in their details under the key $3. A pool that registered again under
-- another id has its first start there under the key $4.
with listed as (
  select
    pools.id,
    limits.name,
    coalesce(
      pg_catalog.to_timestamp((pools.details ->> $4::text)::float8),
      pools.started_at
    ) as started_at
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
