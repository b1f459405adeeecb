-- Delete at most $1 keys whose window ended an hour ago. Returns their number. The hour is for clients
-- with the clock of another machine.
with expired as (
  select keys.key
  from :ext_schema.unique_keys as keys
  where keys.until < pg_catalog.now() - interval '1 hour'
  order by keys.until
  limit $1::int
  for update skip locked
), deleted as (
  delete from :ext_schema.unique_keys as keys
  -- An array, so that the planner finds these rows by the primary key and does not read the table.
  where keys.key = any (array(select expired.key from expired))
  returning keys.key
)
select pg_catalog.count(*) from deleted;
