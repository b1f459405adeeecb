-- Pools $1 have ended and hold nothing.
delete from :ext_schema.pools
where id = any ($1::text[]);
