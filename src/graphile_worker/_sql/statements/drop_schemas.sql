-- Drop both schemas with all that is in them.
drop schema if exists :schema, :ext_schema cascade;
