-- The companion schema: what only this implementation keeps.
create schema if not exists :ext_schema;
