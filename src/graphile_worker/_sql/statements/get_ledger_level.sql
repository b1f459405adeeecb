-- How far a shared schema is that has no column for breaking levels yet.
select pg_catalog.max(id) from :schema.migrations;
