-- The companion schema of this package.
create schema if not exists :ext_schema;
