-- How far the companion schema is.
select pg_catalog.max(id) from :ext_schema.migrations;
