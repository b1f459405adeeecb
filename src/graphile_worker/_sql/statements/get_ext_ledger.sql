-- Return the last migration of the companion schema.
select pg_catalog.max(id) from :ext_schema.migrations;
