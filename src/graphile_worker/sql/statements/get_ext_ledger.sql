-- How far the companion schema is.
select max(id) from :ext_schema.migrations;
