-- Remove pools $1, which have stopped and have no locks.
delete from :ext_schema.pools
where id = any ($1::text[]);
