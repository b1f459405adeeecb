-- Free the slots of pools that were rescued as dead, or that are not registered any more: a pool
-- registers before it rents, and returns its slots before it ends.
update :ext_schema.slots as slots
set pool_id = null,
    rented_at = null
where slots.pool_id is not null
  and not exists (
    select
    from :ext_schema.pools as pools
    where pools.id = slots.pool_id
      and pools.swept_at is null
  );
