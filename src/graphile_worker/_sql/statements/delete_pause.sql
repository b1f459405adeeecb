-- Delete the pause of $2, a queue or task by $1. Returns whether it had not ended.
with deleted as (
  delete from :ext_schema.pauses as pauses
  where pauses.kind = $1::text
    and pauses.name = $2::text
  returning pauses.until is null or pauses.until > pg_catalog.now() as is_active
)
select exists (select from deleted where deleted.is_active);
